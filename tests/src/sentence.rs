//! What a message must be like.

use std::error::Error as _;

use leasehold::Error;

/// The most characters of a message.
pub const LONGEST: usize = 300;

/// The message of an error with its cause, as the command `leasehold` prints it. Checks that it is one line, and short
/// enough to be read.
pub fn sentence(error: &Error) -> String {
    let text = match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    assert!(text.chars().count() <= LONGEST, "{text}");
    assert!(!text.contains('\n'), "{text}");
    text
}
