//! What an error has to say: one short sentence with the host and the cause.

use std::error::Error as _;

use leasehold::Error;

/// The longest message, with its causes, in characters.
const LONGEST: usize = 300;

/// The error with its causes, as a log or the command shows it.
pub fn message(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// Checks the message of an error of a call that this host has answered, or has not.
pub fn is_told(error: &Error, host: &str) {
    let text = message(error);
    let length = text.chars().count();
    assert!(length <= LONGEST, "{length} characters: {text}");
    for part in ["painless", "ctx.", "params", "\n"] {
        assert!(!text.contains(part), "{part:?} is in {text}");
    }
    let names_a_host = matches!(
        error,
        Error::Unreachable { .. }
            | Error::Interrupted { .. }
            | Error::TimedOut { .. }
            | Error::Denied { .. }
            | Error::Overloaded { .. }
            | Error::NotPrepared { .. }
            | Error::Store { .. }
    );
    // Without any answer the store does not know which host its client asked, and names the alias.
    let names_the_alias = matches!(error, Error::TimedOut { .. }) && text.contains(" (locks");
    if names_a_host && !names_the_alias {
        assert!(text.contains(host), "{host} is not in {text}");
    }
}
