//! Stage *plan*: from a policy and a survey to a plan or a refusal. Pure.

mod choose;
mod containerd;
mod losses;
mod make;
mod preview;
mod recipe;

pub use choose::describe_use;
pub use losses::volumes;
pub use make::{bind, plan};
pub use preview::preview;
