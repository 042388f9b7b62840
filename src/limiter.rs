//! The limiter: at most so many calls in each window, over all processes that share the store.

mod permit;
mod queue;
mod queues;

use std::{
    fmt,
    future::IntoFuture,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;

pub use self::permit::{Permit, PermitAttempt};
pub(crate) use self::queues::LimiterContext;
use self::queues::LimiterQueue;
use crate::model::{Error, Key, Quota, WaitPolicy};

/// Allows at most so many calls in each window, over all processes that ask for the same key: made by
/// [`Leases::limiter`](crate::Leases::limiter).
///
/// The store counts the permits, and its clock measures the windows, so the clocks of the callers' machines do
/// not matter. A permit needs no release: it counts for its window, whether or not it is used. A permit that was
/// granted is lost if the process crashes, and may be lost with an answer that does not arrive. No permit is
/// given twice.
///
/// A limiter and a lock of the same key do not affect each other.
///
/// # Windows
///
/// - Fixed, which is the default: each window of the server's clock has all of its permits from its beginning.
///   Windows begin at multiples of their length since 1970, so a window of a second is a second of the clock.
///   A caller that takes all permits at the end of one window and at the beginning of the next has taken twice
///   the limit within a moment.
/// - [`smooth`](Limiter::smooth): permits come back one after the other.
///
/// Limiters of one key with windows of another length, or of the other kind, are counted separately: ten
/// a second and a thousand a day on `"partner-api"` are two limiters, and a call takes a permit of each.
///
/// The limit holds for the instants at which the server grants. It does not cover how long an answer takes to
/// arrive, nor how long the caller takes to make its call; so stay some way below the limit of a partner.
///
/// If the server's clock goes back by up to 10 s, at a failover for example, the limiter takes its time to stand
/// still meanwhile. If the clock goes back by more, a fixed limiter forgets what was granted in later windows,
/// and a smooth one all that was granted.
///
/// # Which of several callers asks
///
/// The tasks of one process that wait for the same limiter (the same key, limit and windows of the same
/// [`Leases`](crate::Leases)) stand in a queue, first in, first out. One request asks for the permits of as many
/// of them as it can, and none is sent while the window is known to be full: a thousand waiting tasks send one
/// request a window, or one for each permit that a smooth limiter earns back. The request is sent later than the
/// server's window turns, by a random part of up to a twentieth of the window and a second at the most, so that
/// the processes do not all ask at once. A full window is asked again every ten minutes in any case.
///
/// A caller that wants several permits at once holds up those behind it. Between processes there is no order.
///
/// # Another limit
///
/// Each request brings its limit, and the store keeps what was taken. So a new deployment may have another
/// limit or burst: what was taken before counts for it too, until the window turns. While both deployments run,
/// the greater of the two limits holds for them together. A limiter with another length of the window starts with
/// nothing taken.
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

    /// Makes the permits come back one after the other, each a `limit`-th of the window after the one before,
    /// instead of all of them as the window turns. This is the generic cell rate algorithm, which the crate
    /// `governor` has within one process.
    ///
    /// `burst`, from 1 up to the limit, is how many permits can be taken at once after a pause. In any span as
    /// long as the window, wherever it begins, at most `limit + burst - 1` permits are granted. With a burst of 1
    /// that is the limit, but a permit that is not taken before the next one comes is lost. With a burst of 2 or
    /// more the limit is reached although requests take time. The server's clock counts milliseconds, so a limit
    /// of more than one permit a millisecond needs a burst of as many as come back in one.
    ///
    /// A bad burst is refused when permits are asked for: [`Error::InvalidBurst`].
    #[must_use = "it gives back the smooth limiter"]
    pub fn smooth(self, burst: u32) -> Self {
        let quota = self.quota.and_then(|quota| quota.smooth(burst));
        Self::new(self.context, self.key, quota)
    }

    /// Asks for a permit once, without waiting for one.
    ///
    /// The call takes no permit from the tasks of this process that wait: while they wait for the window to turn,
    /// it gives [`PermitAttempt::Full`] without a request. It does that too while the last answer of the server
    /// says that the limiter is still full.
    ///
    /// # Errors
    ///
    /// An error whose name begins with `Invalid` for bad input, and [`Error::NoRuntime`] outside of a tokio
    /// runtime: nothing is sent then. [`Error::Closed`] if the client closes or is closed. Otherwise the error of
    /// the store, after three tries if a retry could help.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. If a request is under way when the future is dropped, its permits may be lost, unless another
    /// task of this process waits for them.
    pub async fn try_permit(&self) -> Result<PermitAttempt, Error> {
        self.try_permits(1).await
    }

    /// Asks for so many permits once, all or none, as [`try_permit`](Limiter::try_permit) does for one.
    ///
    /// # Errors
    ///
    /// As for [`try_permit`](Limiter::try_permit), and [`Error::InvalidPermits`] for zero permits, and for more
    /// than can be granted at once: the limit, or the burst of a smooth limiter.
    ///
    /// # Cancel safety
    ///
    /// As for [`try_permit`](Limiter::try_permit).
    pub async fn try_permits(&self, permits: u32) -> Result<PermitAttempt, Error> {
        self.queue()?.take(permits, WaitPolicy::None).await
    }

    /// Waits for a permit.
    ///
    /// Await the returned builder. [`TakePermit::wait_for`] bounds the wait.
    pub fn permit(&self) -> TakePermit {
        self.permits(1)
    }

    /// Waits for so many permits, all at once.
    ///
    /// Await the returned builder. The callers behind it in the queue wait until it has its permits. Otherwise callers
    /// that want fewer could take every permit before it.
    pub fn permits(&self, permits: u32) -> TakePermit {
        TakePermit {
            queue: self.queue(),
            permits,
            policy: WaitPolicy::Endless,
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

/// A request for permits that waits until there are enough, made by [`Limiter::permit`] and
/// [`Limiter::permits`]. Await it.
///
/// After an error that [a retry can mend](Error::is_retryable) the store is asked again. Such an error ends the
/// wait only when the time given to [`wait_for`](TakePermit::wait_for) is over; or, without such a time, when
/// all answers were errors for the [`call_timeout`](crate::LeasesBuilder::call_timeout).
///
/// # Errors
///
/// As for [`Limiter::try_permits`], and [`Error::LimitReached`] as soon as it is certain that there are not
/// enough permits in the time that is allowed for waiting.
///
/// # Cancel safety
///
/// Dropping the future gives up its place in the queue: another call starts at the end. If a request is under
/// way by then, its permits may be lost, unless another task of this process waits for them.
#[must_use = "nothing is sent until it is awaited"]
pub struct TakePermit {
    queue: Result<Arc<LimiterQueue>, Error>,
    permits: u32,
    policy: WaitPolicy,
}

impl TakePermit {
    /// Waits at most this long for permits. If a request for them is under way at the end of this time, its answer is
    /// still waited for. With a time of zero the limiter is asked once, as by [`Limiter::try_permits`].
    pub fn wait_for(mut self, time: Duration) -> Self {
        self.policy = WaitPolicy::For(time);
        self
    }
}

impl fmt::Debug for TakePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakePermit")
            .field("permits", &self.permits)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl IntoFuture for TakePermit {
    type Output = Result<Permit, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.queue?.wait(self.permits, self.policy).await })
    }
}
