//! How long an acquire waits for the holders of its key.

use std::time::Duration;

/// How long a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// Not at all.
    None,
    /// This long.
    For(Duration),
    /// For as long as it takes.
    Endless,
}
