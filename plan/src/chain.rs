//! One line for an error and all its causes.

use std::error::Error;

/// The error's message and its sources', joined by `: `, as it is printed once at the
/// top of a program.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
