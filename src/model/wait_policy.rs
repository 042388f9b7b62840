//! How long a caller waits in total for a key or for permits. The pauses between two requests are in `retry.rs`.

use std::time::Duration;

/// How long a caller waits in total, from its call until it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// The caller does not wait: the first answer counts.
    None,
    /// The caller waits for at most this long.
    For(Duration),
    /// The caller waits without a limit.
    Endless,
}
