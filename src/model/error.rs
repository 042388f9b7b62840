//! `Error`: what can go wrong, and what to do about it.

#[cfg(test)]
mod tests;

use std::{path::PathBuf, time::Duration};

use super::{
    brief::{brief, quoted, sentence},
    cause::Cause,
    fence::Fence,
    key::Key,
    limits::{MAX_HOLDERS, MAX_KEY_BYTES, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_TTL, MAX_WINDOW},
    lock_state::Held,
    permit::PermitsLeft,
    tick::{Done, Tick},
};

/// The longest problem of a store, in characters, so that its message has at most 300.
const MAX_PROBLEM: usize = 220;
/// The longest problem of a document.
const MAX_OF_DOCUMENT: usize = 130;
/// The longest error of a renewal in the reason of a loss.
const MAX_OF_RENEWAL: usize = 190;
/// The longest name of a store.
const MAX_STORE: usize = 80;
/// The longest path of a file.
const MAX_PATH: usize = 64;
/// The longest text that says what is wrong with a file.
const MAX_FILE_CAUSE: usize = 130;
/// The longest text that is no tick.
const MAX_TICK: usize = 80;

/// Why an operation failed.
///
/// A key that another owner holds is an answer of [`try_acquire`](crate::Leases::try_acquire)
/// ([`Attempt::Held`](crate::Attempt::Held)), and not an error. No variant contains a credential, and neither does a
/// source that this crate makes.
///
/// [`is_retryable`](Error::is_retryable) says whether the same call can succeed later,
/// [`is_ambiguous`](Error::is_ambiguous) whether the store may have carried out the request, and [`kind`](Error::kind)
/// is for counting and for decisions:
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Error, Leases, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let leases = Leases::new(MemoryStore::new());
/// let ttl = Duration::from_secs(30);
/// let lease = leases.acquire("report:42", ttl).await?;
/// match leases.acquire("report:42", ttl).wait_for(Duration::from_millis(10)).await {
///     Err(Error::WaitTimedOut { held, .. }) => println!("{} has it", held.owner()),
///     Err(error) if error.is_retryable() => println!("try again later: {error}"),
///     Err(error) => return Err(error),
///     Ok(_) => unreachable!("it is held"),
/// }
/// # lease.release().await
/// # }
/// ```
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

    /// The request is for no permits, or for more than there are. Nothing was sent.
    #[error("of {capacity} permits, 1 to {capacity} can be asked for, not {permits}")]
    InvalidPermits {
        /// How many permits were asked for.
        permits: i64,
        /// How many permits the key or limiter has, as the request says.
        capacity: i64,
    },

    /// A lease of permits cannot be upgraded or downgraded. Nothing was sent.
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

    /// The text is not a tick. Nothing was sent.
    #[error(
        "{} is no tick: give a whole number, a date as 2026-11-24, a time as 2026-11-24T03:00:00Z, or a version as 1.2.3",
        brief(&format!("{text:?}"), MAX_TICK)
    )]
    InvalidTick {
        /// The refused text, at most its first 64 characters.
        text: String,
    },

    /// The tick is of another kind than the tick that is done for this key. So the store cannot tell whether it is done
    /// too. Nothing was changed.
    #[error(
        "the tick {tick} is a {}, and the last one done for {} is {done}, a {}: use ticks of one kind, or another key",
        tick.kind(),
        quoted(key),
        done.kind()
    )]
    OtherTickKind {
        /// The key.
        key: Key,
        /// The tick that was asked for.
        tick: Tick,
        /// The tick that is done.
        done: Tick,
    },

    /// The tick is done, so its job does not run. [`RunOnce::run`](crate::jobs::RunOnce::run) returns this as an answer
    /// and not as an error.
    #[error("{0}")]
    Done(Done),

    /// A later tick is done, so the job does not run for this one. Whether it ran before is not known, because the store
    /// keeps the newest done tick only. [`RunOnce::run`](crate::jobs::RunOnce::run) returns this as an answer and not as
    /// an error.
    #[error("{tick} is left out, because a later tick is done: {done}")]
    Superseded {
        /// The tick that was asked for.
        tick: Tick,
        /// The newest tick that is done.
        done: Done,
    },

    /// The maximum hold is shorter than the ttl. Nothing was sent.
    #[error("a maximum hold is at least the ttl of {ttl:?}, this one is {max_hold:?}")]
    InvalidMaxHold {
        /// The refused time.
        max_hold: Duration,
        /// The time to live that was asked for.
        ttl: Duration,
    },

    /// The limit of a limiter is 0, so it would never grant a permit. Nothing was sent.
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

    /// The server could not be reached. Nothing was changed. A retry can help.
    #[error(
        "{store} cannot be reached: check its address, that it runs, and the network in between"
    )]
    Unreachable {
        /// The kind of store.
        store: &'static str,
        /// The driver's error.
        source: Cause,
    },

    /// The connection or the server failed after the request may have been sent. The store may or may not have carried
    /// it out. A retry can help, and is harmless with the same lease id.
    #[error("the answer of {store} was lost: the request may or may not have been carried out")]
    Interrupted {
        /// The kind of store.
        store: &'static str,
        /// The driver's error.
        source: Cause,
    },

    /// The store did not answer in time. It may or may not have carried out the request. A retry can help, and is
    /// harmless with the same lease id.
    #[error(
        "{} gave no answer to {operation} within {limit:?}: the request may or may not have been carried out",
        brief(store, MAX_STORE)
    )]
    TimedOut {
        /// The [name](crate::Store::name) of the store.
        store: String,
        /// The name of the operation.
        operation: &'static str,
        /// How long this crate waited for the answer.
        limit: Duration,
    },

    /// The lease was granted, and expired before its caller took it: nobody polled the future of the acquire for that
    /// long, or the machine was suspended. The lease is released. A retry can help.
    #[error(
        "the lease on {} was granted, and its ttl of {ttl:?} was over before the acquire's future was polled again: poll it while it is there, or drop it",
        quoted(key)
    )]
    NotTaken {
        /// The key.
        key: Key,
        /// The ttl of the lease.
        ttl: Duration,
    },

    /// The server refused the credentials, or they do not allow the operation. Nothing was changed.
    #[error(
        "{store} refused the credentials for this operation: check the user, its password and its roles"
    )]
    Denied {
        /// The kind of store.
        store: &'static str,
        /// The driver's error.
        source: Cause,
    },

    /// The store is not set up for locks. Nothing was changed.
    #[error(
        "{store} is not prepared for locks ({}): mend that, and call prepare() once",
        sentence(problem, MAX_PROBLEM)
    )]
    NotPrepared {
        /// The kind of store.
        store: &'static str,
        /// What is missing, or what is in the way.
        problem: String,
    },

    /// A file cannot be used for locks. Nothing was changed.
    #[error(
        "the file {} cannot be used for locks ({}): check its folder, this user's rights, and what else is kept in it",
        brief(&path.to_string_lossy(), MAX_PATH), sentence(&source.to_string(), MAX_FILE_CAUSE)
    )]
    File {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with the file.
        source: Cause,
    },

    /// The server has no capacity for the request now, or takes no writes. Nothing was changed. A retry can help, after
    /// a while.
    #[error(
        "{store} does not take the request now: try again later, and look at its load and its disks"
    )]
    Overloaded {
        /// The kind of store.
        store: &'static str,
        /// The server's error.
        source: Cause,
    },

    /// The server has no journal, so a grant that it acknowledges would not survive a crash. Nothing was changed.
    #[error(
        "{store} has no journal, so a lease that it grants would not survive its end: give it a storage engine with a journal, or bear the loss and say journal(false) to the store"
    )]
    NoJournal {
        /// The kind of store.
        store: &'static str,
        /// The server's error.
        source: Cause,
    },

    /// The future was polled outside a tokio runtime. Nothing was sent.
    #[error("leasehold needs a tokio runtime with time enabled: await it inside one")]
    NoRuntime,

    /// The tokio runtime on which the handle was first used has ended. A handle belongs to that runtime: its leases are
    /// renewed and released there. Nothing is sent any more. What was sent before may be carried out.
    #[error(
        "the tokio runtime on which this handle was first used has ended: make a handle for each runtime"
    )]
    RuntimeEnded,

    /// Other clients kept changing the same document. Nothing was changed. A retry can help.
    #[error(
        "too many clients changed {} at the same moment; try again",
        quoted(key)
    )]
    Contention {
        /// The key.
        key: Key,
    },

    /// A version of leasehold that this version does not know wrote the document of this key. The document was not
    /// changed.
    #[error(
        "the document of {} has the schema {}, which this version does not know: upgrade leasehold here",
        quoted(key),
        quoted(found)
    )]
    UnsupportedSchema {
        /// The key.
        key: Key,
        /// The schema that the document names.
        found: String,
    },

    /// The document of this key is not a lock. It was not changed.
    #[error(
        "the document of {} is not a lock ({}): give the locks a collection of their own, or remove the document",
        quoted(key),
        sentence(problem, MAX_OF_DOCUMENT)
    )]
    NotALock {
        /// The key.
        key: Key,
        /// What is wrong with it.
        problem: String,
    },

    /// The document under the id of this limiter is not that of a limiter. It was not changed.
    #[error(
        "the document of the limiter {} is damaged ({}): remove the document",
        quoted(key),
        sentence(problem, MAX_OF_DOCUMENT)
    )]
    NotALimiter {
        /// The key.
        key: Key,
        /// What is wrong with it.
        problem: String,
    },

    /// The store failed in a way that a retry cannot fix.
    #[error("{store} could not carry out the operation")]
    Store {
        /// The kind of store.
        store: &'static str,
        /// The driver's error.
        source: Cause,
    },

    /// The key was held, or kept for others that wait, for as long as the caller was willing to wait.
    #[error("after a wait of {waited:?}, {held}")]
    WaitTimedOut {
        /// How long the caller waited.
        waited: Duration,
        /// The holders in the last answer of the store.
        held: Held,
    },

    /// The key has [`MAX_HOLDERS`] live holders. None of them conflicts with the request, but a key cannot have more
    /// holders. Nothing was changed.
    ///
    /// [`try_acquire`](crate::Leases::try_acquire) fails with this error at once. A caller that waits goes on waiting
    /// for a holder to leave, and gets this error when the time for waiting is over.
    #[error(
        "{} has {MAX_HOLDERS} holders, as many as a key can have: wait until some leave, or spread them over several keys",
        quoted(key)
    )]
    TooManyHolders {
        /// The key.
        key: Key,
    },

    /// The limiter will not grant the permits within the time that the caller allowed for waiting.
    #[error(
        "{} is at its limit after a wait of {waited:?}: try again in {retry_in:?}",
        quoted(key)
    )]
    LimitReached {
        /// The key of the limiter.
        key: Key,
        /// How long the caller waited.
        waited: Duration,
        /// How long it takes until the permits can be back, by the last answer of the server.
        retry_in: Duration,
        /// What is left of the limiter, by the same answer.
        left: PermitsLeft,
    },

    /// [`Leases::close`](crate::Leases::close) was called. This handle acquires nothing any more.
    #[error("these leases were closed: nothing is acquired any more")]
    Closed,

    /// The lease is not held any more.
    #[error("the lease on {} is lost: {reason}", quoted(key))]
    Lost {
        /// The key.
        key: Key,
        /// How the lease was lost.
        reason: LossReason,
    },

    /// The resource has seen a newer fence: another lease was granted after this one, which is over. Nothing was
    /// changed.
    #[error(
        "fence {fence} is over, the resource has seen {}: stop, write nothing more, and acquire again",
        shown(seen)
    )]
    Fenced {
        /// The fence of the write that was refused.
        fence: Fence,
        /// The newest fence that the resource has seen; `None` if the resource does not say.
        seen: Option<Fence>,
    },

    /// The filter of an upsert under a fence does not name the `_id` of its document. Nothing was sent.
    #[error(
        "an upsert under a fence needs the _id of the document in its filter, as in {{_id: 7}}: without it a stale holder would insert a second document"
    )]
    InvalidUpsert,

    /// The lease cannot be enforced in this transaction. If the transaction was under way, it cannot commit any more.
    #[error("the lease on {} cannot be enforced here: {problem}", quoted(key))]
    NotEnforceable {
        /// The key.
        key: Key,
        /// What is in the way.
        problem: &'static str,
    },

    /// The server aborted the transaction, for example because another client wrote one of its documents, or because
    /// the connection broke. Nothing of the transaction is committed. A retry of the whole transaction can help.
    #[error("{store} gave up the transaction, and nothing of it is done: run all of it again")]
    TransactionAborted {
        /// The kind of store.
        store: &'static str,
        /// The driver's error.
        source: Cause,
    },
}

impl Error {
    pub(crate) fn not_a_lock(key: &Key, problem: impl Into<String>) -> Self {
        Self::NotALock {
            key: key.clone(),
            problem: problem.into(),
        }
    }

    /// The driver's error that caused this one, if it is of type `E`, for example `mongodb::error::Error`. `None` if it
    /// is of another type, or if no driver's error caused this one. [`source`](std::error::Error::source) describes it
    /// in a sentence.
    pub fn driver_error<E: std::error::Error + 'static>(&self) -> Option<&E> {
        std::error::Error::source(self).and_then(Cause::original)
    }

    /// The cause, if a store gave it.
    #[cfg(feature = "mongodb")]
    pub(crate) fn cause_mut(&mut self) -> Option<&mut Cause> {
        match self {
            Self::Unreachable { source, .. }
            | Self::Denied { source, .. }
            | Self::Interrupted { source, .. }
            | Self::Overloaded { source, .. }
            | Self::NoJournal { source, .. }
            | Self::Store { source, .. }
            | Self::TransactionAborted { source, .. } => Some(source),
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

/// How a lease was lost.
///
/// Whatever the reason, the work that depends on the lease has to stop. The reason is what this process knew at the
/// moment of the loss. If the lease expired, another holder may be granted the key a moment later.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease expired: it was not kept alive, a renewal by hand was not answered in time, or this process was paused
    /// for too long.
    #[error("it expired before it was renewed")]
    Expired,
    /// The lease is no longer among the holders of its key: it was evicted, [its owner took it
    /// over](crate::Acquire::take_over), it was released elsewhere, or it expired and the key was granted to another
    /// holder.
    #[error("it was taken over after its expiry, evicted, or released elsewhere")]
    TakenOver,
    /// The lease expired while its renewals failed. The field is the last error.
    #[error("it could not be renewed in time: {}", sentence(&.0.to_string(), MAX_OF_RENEWAL))]
    Unreachable(#[source] Box<Error>),
    /// The lease was held for its whole [`max_hold`](crate::Acquire::max_hold), so it was not renewed any more.
    #[error("it was held for as long as its maximum hold allows")]
    HeldTooLong,
    /// [`Leases::close`](crate::Leases::close) released the lease.
    #[error("its leases were closed, which released it")]
    Closed,
}
