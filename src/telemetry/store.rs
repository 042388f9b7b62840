//! Telemetry of the store: calls by an operator, calls that fail, and the listeners to its streams.

use std::time::Duration;

use tracing::{
    Span, debug,
    field::{self, Empty},
    info, warn,
};

use super::{
    metrics,
    words::{TARGET, outcome_of},
};
use crate::{
    messages::Eviction,
    model::{Error, ErrorKind, Key, LeaseId},
};

/// Reports that a call to the store failed, or was not answered in time. An error that the store did not cause is not
/// reported.
///
/// The subscriber, which is code of the application, may panic. So this comes last, or by `runtime::report`, in work that
/// has to go on: that tries again, or gives back what it may have got.
pub(crate) fn store_failed(operation: &'static str, about: Option<(&Key, LeaseId)>, error: &Error) {
    let failed = match error.kind() {
        ErrorKind::Unavailable
        | ErrorKind::NoAnswer
        | ErrorKind::ForeignDocument
        | ErrorKind::TransactionAborted
        | ErrorKind::Other => true,
        ErrorKind::Misconfigured => !matches!(
            error,
            Error::NoRuntime | Error::RuntimeEnded | Error::NotEnforceable { .. }
        ),
        _ => false,
    };
    if !failed {
        return;
    }
    let (operation, retryable) = (label(operation), error.is_retryable());
    let key = about.map(|(key, _)| key.as_str());
    let lease = about.map(|(_, lease)| field::display(lease));
    debug!(
        target: TARGET, operation, key, lease, %error, retryable,
        "a call to the store failed",
    );
    metrics::count(metrics::STORE_ERRORS, &[("operation", operation)], 1);
}

/// The name of an operation as the value of a label, which must not contain spaces.
fn label(operation: &'static str) -> &'static str {
    match operation {
        "remove expired" => "remove_expired",
        "wake-ups" => "wake_ups",
        "a guarded write" => "guarded_write",
        word => word,
    }
}

/// The span of a call that belongs to no lease of this process. Most of them are calls by an operator.
pub(crate) fn call(operation: &'static str, key: Option<&Key>) -> Span {
    let key = key.map(Key::as_str);
    macro_rules! named {
        ($name:literal) => {
            span!($name, key, outcome = Empty)
        };
    }
    match operation {
        "inspect" => named!("leasehold.inspect"),
        "peek" => named!("leasehold.peek"),
        "give_back" => named!("leasehold.give_back"),
        "list" => named!("leasehold.list"),
        "evict" => named!("leasehold.evict"),
        "release" => named!("leasehold.release"),
        "remove expired" => named!("leasehold.remove_expired"),
        "purge" => named!("leasehold.purge"),
        _ => named!("leasehold.call"),
    }
}

/// Reports the outcome of a call that belongs to no lease of this process.
pub(crate) fn called<T>(
    span: &Span,
    operation: &'static str,
    key: Option<&Key>,
    end: &Result<T, Error>,
) {
    let error = end.as_ref().err();
    let outcome = error.map_or("ok", outcome_of);
    span.record("outcome", outcome);
    span.in_scope(|| {
        debug!(
            target: TARGET, operation = label(operation), key = key.map(Key::as_str), outcome,
            error = error.map(field::display), "asked the store",
        );
    });
}

/// Reports an eviction. `None` if the key has no document, so there was nothing to evict.
pub(crate) fn evicted(key: &Key, eviction: Option<&Eviction>) {
    if let Some(Eviction { fence, evicted }) = eviction {
        info!(
            target: TARGET, key = key.as_str(), fence = fence.get(), holders = evicted.len(), "evicted",
        );
    }
}

/// Reports that the document of a free key was removed, if there was one.
pub(crate) fn removed(key: &Key, removed: bool) {
    if removed {
        info!(target: TARGET, key = key.as_str(), "removed");
    }
}

pub(crate) fn purged(removed: u64, retention: Duration) {
    info!(target: TARGET, removed, ?retention, "purged");
}

pub(crate) fn released_owner(owner: &str, released: u64) {
    info!(target: TARGET, owner, released, "released all of an owner");
}

/// The span of the close of a client.
pub(crate) fn close() -> Span {
    span!("leasehold.close")
}

/// A stream of a store that a listener reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyStream {
    /// The keys that become free.
    Freed,
    /// The keys for which a process begins to wait.
    Awaited,
}

/// Reports that a listener has opened its stream.
pub(crate) fn listener_opened(stream: KeyStream) {
    let what = match stream {
        KeyStream::Freed => "keys that become free",
        KeyStream::Awaited => "processes that begin to wait",
    };
    debug!(target: TARGET, "the store tells of {what}");
}

/// Reports that the store has no such stream.
pub(crate) fn listener_unsupported(stream: KeyStream) {
    let what = match stream {
        KeyStream::Freed => "free keys; waiters ask from time to time",
        KeyStream::Awaited => "processes that wait; it is asked twice a second",
    };
    debug!(target: TARGET, "the store tells nothing of {what}");
}

/// Reports that a listener has lost its stream by an error. It will open the stream again.
pub(crate) fn listener_failed(stream: KeyStream, error: &Error) {
    let what = match stream {
        KeyStream::Freed => "no wake-ups from the store; waiters ask from time to time",
        KeyStream::Awaited => "no recalls from the store; it is asked twice a second who waits",
    };
    warn!(target: TARGET, %error, "{what}");
}
