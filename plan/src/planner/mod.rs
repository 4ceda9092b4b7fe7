//! Stage *plan*: from a policy and a survey to a plan or a refusal. Pure.

mod choose;
mod containerd;
mod losses;
mod make;
mod recipe;

pub use choose::describe_use;
pub use losses::volumes;
pub use make::plan;
