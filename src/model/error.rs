//! `Error`: what can go wrong, and what to do about it.

#[cfg(test)]
mod tests;

use std::{path::PathBuf, time::Duration};

use super::{
    cause::Cause,
    fence::Fence,
    key::Key,
    limits::{MAX_HOLDERS, MAX_KEY_BYTES, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_TTL, MAX_WINDOW},
    lock_state::Held,
};

/// Why an operation did not do what it was asked.
///
/// That somebody else holds a lock is an answer ([`Attempt::Held`](crate::Attempt::Held)), not an
/// error. No variant, nor its source as far as this crate makes it, holds a credential.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is empty or too long. Nothing was sent.
    #[error(
        "a key is 1 to {MAX_KEY_BYTES} bytes of text, this one has {bytes}; shorten or hash it"
    )]
    InvalidKey {
        /// The length of the refused key, in bytes of UTF-8.
        bytes: usize,
    },

    /// The name of the owner is empty or too long. Nothing was sent.
    #[error("an owner is 1 to {MAX_OWNER_BYTES} bytes of text, this one has {bytes}; shorten it")]
    InvalidOwner {
        /// The length of the refused name, in bytes of UTF-8.
        bytes: usize,
    },

    /// No permits were asked for, or more than there are. Nothing was sent.
    #[error("of {capacity} permits, 1 to {capacity} can be asked for, not {permits}")]
    InvalidPermits {
        /// How many were asked for.
        permits: u32,
        /// How many there are, as the request says.
        capacity: u32,
    },

    /// A lease of permits cannot become exclusive or shared. Nothing was sent.
    #[error(
        "a lease of permits cannot become exclusive or shared: release it, and acquire another"
    )]
    InvalidConversion,

    /// The note is too long. Nothing was sent.
    #[error("a note has at most {MAX_NOTE_BYTES} bytes of text, this one has {bytes}; shorten it")]
    InvalidNote {
        /// The length of the refused note, in bytes of UTF-8.
        bytes: usize,
    },

    /// The minimum hold is too long. Nothing was sent.
    #[error("a minimum hold is at most {MAX_TTL:?}, this one is {min_hold:?}")]
    InvalidMinHold {
        /// The refused time.
        min_hold: Duration,
    },

    /// A limiter that would never let anything through. Nothing was sent.
    #[error("a limiter lets through at least one call a window: a limit of 0 is none")]
    InvalidLimit,

    /// The window of a limiter is out of bounds. Nothing was sent.
    #[error("a window is between 1ms and {MAX_WINDOW:?}, this one is {window:?}")]
    InvalidWindow {
        /// The refused window.
        window: Duration,
    },

    /// The burst of a smooth limiter is out of bounds. Nothing was sent.
    #[error("a burst is between 1 and the limit of {limit}, this one is {burst}")]
    InvalidBurst {
        /// The refused burst.
        burst: u32,
        /// The limit.
        limit: u32,
    },

    /// The time to live is out of bounds. Nothing was sent.
    #[error(
        "a ttl is between {shortest:?} (twice the clock margin) and {longest:?}, this one is {ttl:?}"
    )]
    InvalidTtl {
        /// The refused time to live.
        ttl: Duration,
        /// The shortest that this store and its clock margin allow.
        shortest: Duration,
        /// The longest that any store allows.
        longest: Duration,
    },

    /// The server could not be reached, so nothing was changed. A retry can help.
    #[error(
        "{store} cannot be reached: check its address, that it runs, and the network in between"
    )]
    Unreachable {
        /// The kind of store.
        store: &'static str,
        /// What the driver said.
        source: Cause,
    },

    /// The connection or the server failed after the request may have been sent: it may or may not
    /// have been carried out. A retry can help, and a retry with the same lease id is harmless.
    #[error("the answer of {store} was lost: the request may or may not have been carried out")]
    Interrupted {
        /// The kind of store.
        store: &'static str,
        /// What the driver said.
        source: Cause,
    },

    /// The store did not answer in time: the request may or may not have been carried out. A retry
    /// can help, and a retry with the same lease id is harmless.
    #[error(
        "no answer to {operation} within {limit:?}: the request may or may not have been carried out"
    )]
    TimedOut {
        /// What was asked of the store.
        operation: &'static str,
        /// How long the answer was waited for.
        limit: Duration,
    },

    /// The lease was granted, and ran out before its caller took it: the future of the acquire was not polled for
    /// so long, or the machine stood still. What was granted is released. A retry can help.
    #[error(
        "the lease on {key} was granted, and its ttl of {ttl:?} was over before the acquire's future was polled again: poll it while it is there, or drop it"
    )]
    NotTaken {
        /// The key.
        key: Key,
        /// How long the lease lived.
        ttl: Duration,
    },

    /// The server refused the credentials, or they do not allow the operation. Nothing was changed.
    #[error(
        "{store} refused the credentials for this operation: check the user, its password and its roles"
    )]
    Denied {
        /// The kind of store.
        store: &'static str,
        /// What the driver said.
        source: Cause,
    },

    /// The store is not set up for locks. Nothing was changed.
    #[error(
        "{store} is not prepared for locks ({problem}): call prepare() once, with a name that no other index has"
    )]
    NotPrepared {
        /// The kind of store.
        store: &'static str,
        /// What is missing or in the way.
        problem: String,
    },

    /// A file cannot be used for locks. Nothing was changed.
    #[error(
        "the file {} cannot be used for locks ({source}): check that its folder is there, that this user may write in it, and that nothing else is kept in that file",
        path.display()
    )]
    File {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with it.
        source: Cause,
    },

    /// The server has no room for the request now, or does not take writes. Nothing was changed. A
    /// retry can help, after a while.
    #[error(
        "{store} does not take the request now: try again later, and look at its load and its disks"
    )]
    Overloaded {
        /// The kind of store.
        store: &'static str,
        /// What the server said.
        source: Cause,
    },

    /// The server has no journal, so what it acknowledges would not survive its end. Nothing was changed.
    #[error(
        "{store} has no journal, so a lease that it grants would not survive its end: give it a storage engine with a journal, or bear the loss and say journal(false) to the store"
    )]
    NoJournal {
        /// The kind of store.
        store: &'static str,
        /// What the server said.
        source: Cause,
    },

    /// The future was polled outside a tokio runtime. Nothing was sent.
    #[error("leasehold needs a tokio runtime with time enabled: await it inside one")]
    NoRuntime,

    /// Other clients kept changing the same document. Nothing was changed. A retry can help.
    #[error("too many clients changed {key} at the same moment; try again")]
    Contention {
        /// The key.
        key: Key,
    },

    /// The document of this key was written by a version of leasehold that this one does not know.
    /// It was left alone.
    #[error(
        "the document of {key} has the schema {found}, which this version does not know: upgrade leasehold here"
    )]
    UnsupportedSchema {
        /// The key.
        key: Key,
        /// The schema that the document names.
        found: String,
    },

    /// The document of this key is not a lock. It was left alone.
    #[error(
        "the document of {key} is not a lock ({problem}): give the locks a collection of their own, or remove the document"
    )]
    NotALock {
        /// The key.
        key: Key,
        /// What about it is wrong.
        problem: String,
    },

    /// The document of this limiter is not one of a limiter. It was left alone.
    #[error("the document of the limiter {key} is damaged ({problem}): remove the document")]
    NotALimiter {
        /// The key.
        key: Key,
        /// What about it is wrong.
        problem: String,
    },

    /// The store failed in a way that a retry will not mend.
    #[error("{store} could not carry out the operation")]
    Store {
        /// The kind of store.
        store: &'static str,
        /// What the driver said.
        source: Cause,
    },

    /// The lock stayed held for the whole time that was allowed for waiting.
    #[error("{} is still held by {} after a wait of {waited:?}", held.key(), held.owner())]
    WaitTimedOut {
        /// How long was waited.
        waited: Duration,
        /// Who held the lock at the last look.
        held: Held,
    },

    /// The key has [`MAX_HOLDERS`] live holders, so there is no place beside them, although none of them
    /// conflicts. Nothing was changed.
    ///
    /// One look says so at once. Who waits goes on until a holder has left, and is told this when the
    /// time is over.
    #[error(
        "{key} has {MAX_HOLDERS} holders, as many as a key can have: wait until some leave, or spread them over several keys"
    )]
    TooManyHolders {
        /// The key.
        key: Key,
    },

    /// The limiter will not let the call through in the time that was allowed for waiting.
    #[error("{key} is at its limit after a wait of {waited:?}: try again in {retry_in:?}")]
    LimitReached {
        /// The key of the limiter.
        key: Key,
        /// How long was waited.
        waited: Duration,
        /// When permits come back, on the server's clock.
        retry_in: Duration,
    },

    /// [`Leases::close`](crate::Leases::close) was called: nothing is acquired any more.
    #[error("these leases were closed: nothing is acquired any more")]
    Closed,

    /// The lease is not held any more.
    #[error("the lease on {key} is lost: {reason}")]
    Lost {
        /// The key.
        key: Key,
        /// How it was lost.
        reason: LossReason,
    },

    /// The resource has seen a newer fence: another holder came after this one, whose lease is over.
    /// Nothing was changed.
    #[error(
        "fence {fence} is over, the resource has seen {}: stop, write nothing more, and acquire again",
        shown(seen)
    )]
    Fenced {
        /// The fence of the write that was refused.
        fence: Fence,
        /// The newest that the resource has seen; `None` if it cannot be told.
        seen: Option<Fence>,
    },

    /// An upsert under a fence does not name the `_id` of its document. Nothing was sent.
    #[error(
        "an upsert under a fence needs the _id of the document in its filter, as in {{_id: 7}}: without it a stale holder would insert a second document"
    )]
    InvalidUpsert,

    /// The lease cannot be enforced here. A transaction that was under way does not commit any more.
    #[error("the lease on {key} cannot be enforced here: {problem}")]
    NotEnforceable {
        /// The key.
        key: Key,
        /// What is in the way.
        problem: &'static str,
    },

    /// The server gave up the transaction, because somebody else wrote one of its documents, for
    /// example, or the connection to it broke. Nothing of it is committed. A retry can help: of the
    /// whole transaction, from its start.
    #[error("{store} gave up the transaction, and nothing of it is done: run all of it again")]
    TransactionAborted {
        /// The kind of store.
        store: &'static str,
        /// What the driver said.
        source: Cause,
    },
}

impl Error {
    /// The driver's error that is behind this one, if there is one of this type: `mongodb::error::Error`, for example.
    /// [`source`](std::error::Error::source) tells it in a sentence.
    pub fn driver_error<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Unreachable { source, .. }
            | Self::Denied { source, .. }
            | Self::Interrupted { source, .. }
            | Self::Overloaded { source, .. }
            | Self::NoJournal { source, .. }
            | Self::Store { source, .. }
            | Self::File { source, .. }
            | Self::TransactionAborted { source, .. } => source.error(),
            _ => None,
        }
    }
}

fn shown(seen: &Option<Fence>) -> String {
    match seen {
        Some(seen) => format!("{seen}"),
        None => "a newer one".to_owned(),
    }
}

/// How a lease was lost, as its guard tells it.
///
/// Whatever the reason: stop what depends on the lease. It says what was known at the moment of the
/// loss; a lease that expired here may be taken over a moment later.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// Its time was over: it was not kept alive, a renewal by hand had no answer in time, or this process
    /// was paused for too long.
    #[error("it expired before it was renewed")]
    Expired,
    /// It is not among the holders of its key any more: it was evicted, released elsewhere, or another was
    /// granted the key after its expiry.
    #[error("it was taken over after its expiry, evicted, or released elsewhere")]
    TakenOver,
    /// Its time was over while renewals failed; this is the last error.
    #[error("it could not be renewed in time: {0}")]
    Unreachable(#[source] Box<Error>),
    /// [`Leases::close`](crate::Leases::close) released it.
    #[error("its leases were closed, which released it")]
    Closed,
}
