//! At most so many calls a window, across all processes that share the store.

mod client;
mod permit;
mod queue;

use std::{
    fmt,
    future::IntoFuture,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;

pub(crate) use self::client::LimiterContext;
use self::client::LimiterQueue;
pub use self::permit::{Permit, PermitAttempt};
use crate::model::{Error, Key, Quota, WaitPolicy};

/// Lets through at most so many calls a window, over all processes that ask for the same key: made by
/// [`Leases::limiter`](crate::Leases::limiter).
///
/// The count stands in the store and the windows go by its clock, so the clocks of the machines do not
/// matter. A permit needs no release: it counts for its window, whatever becomes of it. A crash after a
/// grant costs that permit, and so does an answer that is lost; none is ever given twice.
///
/// A lock of the same key has nothing to do with a limiter.
///
/// # Windows
///
/// - Fixed, which is the default: each window of the server's clock has its permits. They begin at
///   multiples of their length since 1970: a window of a second is a second of the clock. Who takes
///   all of them at the end of one window and at the beginning of the next has taken twice the limit
///   within a moment.
/// - [`smooth`](Limiter::smooth): permits come back one after the other.
///
/// Limiters of one key with windows of another length, or of the other kind, count for themselves: ten
/// a second and a thousand a day on `"partner-api"` are two limiters, and a call takes a permit of each.
///
/// The limit holds for the instants at which the server grants. How long an answer travels, and how long
/// the caller takes to make its call, is beyond it; so give a partner's limit some room.
///
/// A server's clock that goes back by up to 10 s, at a failover for example, stands still for the limiter
/// meanwhile; if it goes back by more, what was granted in later windows is forgotten.
///
/// # Which of several callers asks
///
/// The tasks of one process that wait for the same limiter (the same key, limit and windows of the same
/// [`Leases`](crate::Leases)) stand in a queue, first in, first out. One request asks for as many of
/// them as it can, and none is sent while the window is known to be full: a thousand waiting tasks send
/// one request a window, or one for each permit that a smooth limiter earns back. It is sent a little
/// later than the server's window turns, by up to a twentieth of it and a second at the most, so that
/// processes do not come all at once. A full window is looked at every ten minutes in any case.
///
/// A caller that wants several permits at once holds up those behind it. Between processes there is no order.
///
/// # Another limit
///
/// Each request brings its limit, and the store keeps what was taken. So a new deployment may have another
/// limit or burst: what it finds taken counts for it too, until the window turns. While both run, the
/// greater of the two holds for them together. A new length of the window begins anew.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Leases, MemoryStore, PermitAttempt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # tokio::time::pause();
/// let leases = Leases::new(MemoryStore::new());
/// let limiter = leases.limiter("partner-api", 10, Duration::from_secs(1));
/// for call in 0..25 {
///     limiter.permit().await?; // Two of these wait for the next second.
/// }
/// match limiter.try_permit().await? {
///     PermitAttempt::Granted(_) => println!("call now"),
///     PermitAttempt::Full { retry_in } => println!("come back in {retry_in:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    context: Arc<LimiterContext>,
    key: Result<Key, Error>,
    quota: Result<Quota, Error>,
    queue: Arc<OnceLock<Arc<LimiterQueue>>>,
}

impl Limiter {
    pub(crate) fn new(
        context: Arc<LimiterContext>,
        key: Result<Key, Error>,
        quota: Result<Quota, Error>,
    ) -> Self {
        Self {
            context,
            key,
            quota,
            queue: Arc::default(),
        }
    }

    /// Lets permits come back one after the other, each a `limit`-th of the window after it was taken,
    /// instead of all of them as the window turns: the generic cell rate algorithm, as the crate `governor`
    /// has it in a process.
    ///
    /// After a pause as many as the burst can be taken at once, 1 up to the limit. In any span as long
    /// as the window, wherever it begins, there are at most `limit + burst - 1`: with a burst of 1 never
    /// more than the limit, but then a permit that is not taken as it comes is gone. A burst of 2 or
    /// more makes up for the time that requests take. The server's clock counts milliseconds, so a limit
    /// above one a millisecond needs a burst of what comes in one.
    ///
    /// Bad input is refused when permits are asked for: [`Error::InvalidBurst`].
    #[must_use = "it gives back the smooth limiter"]
    pub fn smooth(self, burst: u32) -> Self {
        let quota = self.quota.and_then(|quota| quota.smooth(burst));
        Self::new(self.context, self.key, quota)
    }

    /// Asks for a permit once, without waiting for one.
    ///
    /// It takes none from the tasks of this process that wait: while they do it answers that the limiter
    /// is full. So it does, without a request, for as long as the server's last answer holds.
    ///
    /// # Errors
    ///
    /// One whose name begins with `Invalid` for bad terms, and [`Error::Closed`], before anything is sent;
    /// otherwise what the store answers, after three tries if a retry could help.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future costs its permits at the most, of a request that was under way and
    /// that no other task of this process was waiting for.
    pub async fn try_permit(&self) -> Result<PermitAttempt, Error> {
        self.try_permits(1).await
    }

    /// Asks for so many permits once, all or none, as [`try_permit`](Limiter::try_permit) does for one.
    ///
    /// # Errors
    ///
    /// As for [`try_permit`](Limiter::try_permit), and [`Error::InvalidPermits`] for none, and for more
    /// than there can be at once: the limit, or the burst of a smooth one.
    ///
    /// # Cancel safety
    ///
    /// As for [`try_permit`](Limiter::try_permit).
    pub async fn try_permits(&self, permits: u32) -> Result<PermitAttempt, Error> {
        self.queue()?.take(permits, WaitPolicy::None).await
    }

    /// Waits for a permit.
    ///
    /// Await the returned builder; [`TakePermit::wait_for`] bounds the wait.
    pub fn permit(&self) -> TakePermit {
        self.permits(1)
    }

    /// Waits for so many permits, all at once.
    ///
    /// Await the returned builder. Those behind it in the queue wait for it, so that it is not passed by
    /// for ever.
    pub fn permits(&self, permits: u32) -> TakePermit {
        TakePermit {
            queue: self.queue(),
            permits,
            patience: WaitPolicy::Endless,
        }
    }

    fn queue(&self) -> Result<Arc<LimiterQueue>, Error> {
        let (key, quota) = (self.key.clone()?, self.quota.clone()?);
        let queue = || LimiterQueue::of(&self.context, key, quota);
        Ok(self.queue.get_or_init(queue).clone())
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("key", &self.key)
            .field("quota", &self.quota)
            .finish_non_exhaustive()
    }
}

/// A request for permits that waits until there are, made by [`Limiter::permit`]. Await it.
///
/// An error that a retry may mend is one more reason to ask again: it ends the wait only when the time
/// given to [`wait_for`](TakePermit::wait_for) is over, or, without one, when there was nothing but errors
/// for the [`call_timeout`](crate::LeasesBuilder::call_timeout).
///
/// # Errors
///
/// As for [`Limiter::try_permits`], and [`Error::LimitReached`] as soon as it is certain that there are
/// none in the time that is allowed for waiting.
///
/// # Cancel safety
///
/// Dropping the future leaves the queue, and costs its permits at the most, if a request was under way and
/// no other task of this process was waiting for them. Another call starts at the end of the queue.
#[must_use = "nothing is sent until it is awaited"]
pub struct TakePermit {
    queue: Result<Arc<LimiterQueue>, Error>,
    permits: u32,
    patience: WaitPolicy,
}

impl TakePermit {
    /// Waits at most this long for a window that has permits; an answer that is on its way by then is
    /// still waited for. With a time of zero it asks once.
    pub fn wait_for(mut self, time: Duration) -> Self {
        self.patience = WaitPolicy::For(time);
        self
    }
}

impl fmt::Debug for TakePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakePermit")
            .field("permits", &self.permits)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl IntoFuture for TakePermit {
    type Output = Result<Permit, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.queue?.wait(self.permits, self.patience).await })
    }
}
