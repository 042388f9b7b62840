//! `Limiter`: limits the calls per window, over all processes that share the store.
//!
//! - `queue.rs` has the callers that wait in this process, and says when a request is sent for them. It is pure.
//! - `driver.rs` has the task of one limiter, which owns its queue and sends its requests.
//! - `several.rs` takes permits of several limits, all or none.
//! - `permit.rs` has what a caller gets.
//!
//! `rules/permit.rs` decides how many permits a request gets.

mod driver;
mod permit;
mod queue;
mod several;

use std::{future::IntoFuture, sync::Arc, time::Duration};

use futures::future::BoxFuture;

pub(crate) use self::driver::LimiterContext;
pub use self::permit::Permit;
use self::{driver::LimiterQueue, several::Limits};
use crate::model::{Error, Key, PermitsLeft, Quota};

/// Limits the calls per window, over all processes that use the same key. Made by
/// [`Leases::limiter`](crate::Leases::limiter).
///
/// A caller takes a permit before each call. The store counts the permits, and its clock measures the windows, so the
/// clocks of the callers' machines do not matter. A permit counts for its window, whether or not it is used, unless the
/// caller [gives it back](Permit::give_back). A granted permit is lost if the process crashes, and may be lost if the answer does not arrive. No permit
/// is granted twice.
///
/// A limiter and a lock of the same key do not affect each other.
///
/// # Windows
///
/// - Fixed, which is the default: all permits of a window are available when it begins. Windows begin at multiples of
///   their length since 1970, by the server's clock, so a window of a second is a second of that clock. If callers take
///   all permits at the end of one window and at the beginning of the next, twice the limit is granted within a moment.
/// - [`smooth`](Limiter::smooth): permits become available one after the other.
///
/// Limiters of one key whose windows differ in length or kind are counted separately. Ten a second and a thousand a day
/// on `"partner-api"` are two limiters. [`and`](Limiter::and) makes one of them, for calls that need a permit of each.
///
/// The limit holds for the instants at which the server grants permits. It does not include how long an answer takes to
/// arrive, nor how long the caller takes to make its call. So choose a limit somewhat below the one that a partner
/// sets.
///
/// If the server's clock goes back by up to 10 s, at a failover for example, the limiter counts as if the clock stood
/// still until it has caught up. If the clock goes back by more, a fixed limiter forgets the permits that it granted in
/// later windows, and a smooth limiter forgets all granted permits.
///
/// # Callers of one process
///
/// The tasks of one process that wait for the same limiter (the same key, limit and windows of the same
/// [`Leases`](crate::Leases)) stand in a queue, first in, first out. One request is for the permits of as many tasks as
/// possible, and no request is sent while the window is known to be full. So a thousand waiting tasks send one request
/// per window, or one request for each permit that becomes available in a smooth limiter. The request is sent a random
/// time after the next window begins on the server, so that not all processes send theirs at once. That time is at most
/// a twentieth of the window, and at most a second. Even if the window is known to be full, a request is sent every ten
/// minutes.
///
/// A caller that waits for several permits at once delays the callers behind it. There is no order between processes.
///
/// # Changing the limit
///
/// Each request contains the limit, and the store keeps the number of permits that were taken. So a new deployment can
/// use another limit or burst: the permits that were taken before count for it too, until the next window begins. While
/// both deployments run, the greater of the two limits holds for them together. A limiter with another window length
/// starts with no permits taken.
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
///     limiter.permit().await?; // The 11th and the 21st call wait for the next second.
/// }
/// match limiter.try_permit().await? {
///     PermitAttempt::Granted(_) => println!("call now"),
///     PermitAttempt::Full { retry_in, .. } => println!("try again in {retry_in:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    limits: Result<Limits, Error>,
}

impl Limiter {
    pub(crate) fn new(
        context: &Arc<LimiterContext>,
        key: Result<Key, Error>,
        quota: Result<Quota, Error>,
    ) -> Self {
        let limits = key.and_then(|key| Ok(Limits::one(LimiterQueue::of(context, key, quota?))));
        Self { limits }
    }

    /// Makes a smooth limiter: permits become available one after the other, at intervals of a `limit`-th of the
    /// window, instead of all at once when a window begins. This is the generic cell rate algorithm (GCRA), which the
    /// crate `governor` implements within one process.
    ///
    /// `burst`, from 1 up to the limit, is how many permits can be taken at once after a pause. In any span as long as
    /// the window, wherever it begins, at most `limit + burst - 1` permits are granted. With a burst of 1 that is the
    /// limit, but a permit that is not taken before the next one becomes available is lost. With a burst of 2 or more,
    /// callers can use the whole limit although requests take time. The server's clock counts milliseconds. So if more
    /// than one permit becomes available per millisecond, the burst must be at least that number.
    ///
    /// A limiter with [several limits](Limiter::and) becomes smooth in each of them, with this burst.
    ///
    /// This call checks nothing. A request for permits returns [`Error::InvalidBurst`] for a burst outside of that
    /// range.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// // One permit every 100 ms, and three at once after a pause.
    /// let limiter = leases.limiter("partner-api", 10, Duration::from_secs(1)).smooth(3);
    /// limiter.permits(3).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "it gives back the smooth limiter"]
    pub fn smooth(self, burst: u32) -> Self {
        let limits = self.limits;
        let limits = limits.and_then(|limits| limits.with(|quota| quota.smooth(burst)));
        Self { limits }
    }

    /// Makes a limiter of several limits, from this one and another one: ten calls a second and a thousand an hour, or
    /// those of one customer and those of all. Its callers get permits of all of them or of none.
    ///
    /// The limits are asked one after the other, those with the longest windows first. A caller waits for a permit of
    /// each in turn. If it gets none of one, because it does not wait or no longer, those of the others are [given
    /// back](Permit::give_back), and may have been missing for other callers meanwhile. A caller whose permit was granted
    /// in a window that ends while it waits for the other limits takes another one. If the process crashes in between,
    /// the permits that were granted count.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let limit = |limit, seconds| leases.limiter("partner-api", limit, Duration::from_secs(seconds));
    /// let limiter = limit(10, 1).and(limit(1_000, 3_600));
    /// limiter.permit().await?;
    /// # assert_eq!(limiter.peek().await?.remaining, 9);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "it gives back the limiter of both"]
    pub fn and(self, other: Self) -> Self {
        let limits = self.limits.and_then(|limits| Ok(limits.and(other.limits?)));
        Self { limits }
    }

    /// Requests a permit once, without waiting until one is available.
    ///
    /// The call does not overtake the tasks of this process that wait: while they wait for the next window, it returns
    /// [`PermitAttempt::Full`] without a request. It also does so while the limiter is still full by the last answer of
    /// the server.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore, PermitAttempt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let limiter = leases.limiter("partner-api", 10, Duration::from_secs(1));
    /// match limiter.try_permit().await? {
    ///     PermitAttempt::Granted(_) => println!("call now"),
    ///     PermitAttempt::Full { retry_in, .. } => println!("try again in {retry_in:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// An error whose name begins with `Invalid` for bad input, and [`Error::NoRuntime`] outside of a tokio runtime,
    /// both before anything is sent. [`Error::Closed`] if the client closes or is closed, and [`Error::RuntimeEnded`] if
    /// [its runtime](crate::Leases#its-runtime) has ended. Otherwise the error of the
    /// store, after three tries if a retry could help.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. If a request is under way when the future is dropped, its permits may be lost, unless another
    /// task of this process waits for them.
    pub async fn try_permit(&self) -> Result<PermitAttempt, Error> {
        self.try_permits(1).await
    }

    /// Requests several permits once, all or none, as [`try_permit`](Limiter::try_permit) does for one.
    ///
    /// # Errors
    ///
    /// As for [`try_permit`](Limiter::try_permit), and [`Error::InvalidPermits`] for zero permits, and for more permits
    /// than can be granted at once: more than the limit, or than the burst of a smooth limiter.
    ///
    /// # Cancel safety
    ///
    /// As for [`try_permit`](Limiter::try_permit).
    pub async fn try_permits(&self, permits: u32) -> Result<PermitAttempt, Error> {
        match self.permits(permits).wait_for(Duration::ZERO).await {
            Ok(permit) => Ok(PermitAttempt::Granted(permit)),
            Err(Error::LimitReached { retry_in, left, .. }) => {
                Ok(PermitAttempt::Full { retry_in, left })
            }
            Err(error) => Err(error),
        }
    }

    /// Reads what is left, and takes nothing. If there are [several limits](Limiter::and), it returns that of the one with
    /// the fewest permits left. Other callers may take permits before the next request of this one, so
    /// [`try_permit`](Limiter::try_permit) may be refused all the same.
    ///
    /// It is one read for each limit, and does not disturb the tasks of this process that wait. (In the classic dialect of MongoDB it
    /// also writes the time of the request to the document, if there is one.)
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let limiter = leases.limiter("partner-api", 10, Duration::from_secs(3_600));
    /// limiter.permits(3).await?;
    /// let left = limiter.peek().await?;
    /// println!("{} of {} are left, all are back in {:?}", left.remaining, left.limit, left.reset_in);
    /// # assert_eq!(left.remaining, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// An error whose name begins with `Invalid` for bad input; [`Error::NotALimiter`] and [`Error::UnsupportedSchema`]
    /// if the document is not a limiter that this version can read; otherwise the error of the store, or
    /// [`Error::TimedOut`] after the [`call_timeout`](crate::LeasesBuilder::call_timeout). The request is sent once, and
    /// not repeated after an error.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn peek(&self) -> Result<PermitsLeft, Error> {
        match &self.limits {
            Ok(limits) => limits.peek().await,
            Err(error) => Err(error.clone()),
        }
    }

    /// Waits for a permit.
    ///
    /// Await the returned builder: it resolves to a [`Permit`]. [`TakePermit`] lists the errors, and has an example.
    pub fn permit(&self) -> TakePermit {
        self.permits(1)
    }

    /// Waits for several permits, all at once.
    ///
    /// Await the returned builder: it resolves to one [`Permit`] for all of them. The callers behind it in the queue
    /// wait until it has its permits. Otherwise callers that want fewer permits could overtake it again and again.
    pub fn permits(&self, permits: u32) -> TakePermit {
        TakePermit {
            limits: self.limits.clone(),
            permits,
            wait: None,
        }
    }
}

/// The answer to [`Limiter::try_permit`](crate::Limiter::try_permit) and
/// [`Limiter::try_permits`](crate::Limiter::try_permits).
#[derive(Debug)]
#[must_use = "a full limiter lets no call through"]
pub enum PermitAttempt {
    /// The calls may be made.
    Granted(Permit),
    /// The limiter does not have enough permits now, so no call may be made.
    Full {
        /// How long it takes until there can be enough permits, by the last answer of the server. Other callers may
        /// take them first.
        retry_in: Duration,
        /// What is left of the limiter, by the same answer.
        left: PermitsLeft,
    },
}

/// A request for permits that waits until there are enough, made by [`Limiter::permit`] and [`Limiter::permits`]. Await
/// it: it resolves to a [`Permit`].
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Error, Leases, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let leases = Leases::new(MemoryStore::new());
/// let limiter = leases.limiter("partner-api", 10, Duration::from_secs(1));
/// match limiter.permits(3).wait_for(Duration::from_secs(5)).await {
///     Ok(permit) => println!("{} calls now", permit.permits()),
///     Err(Error::LimitReached { retry_in, .. }) => println!("not within 5 s; try again in {retry_in:?}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`Limiter::try_permits`], and [`Error::LimitReached`] as soon as it is certain that there will not be
/// enough permits within the time given to [`wait_for`](TakePermit::wait_for).
///
/// After an error that [a retry can fix](Error::is_retryable) the request is sent again. Such an error ends the
/// wait only when the time given to [`wait_for`](TakePermit::wait_for) is over. Without such a time it ends the wait
/// when all answers were errors for the [`call_timeout`](crate::LeasesBuilder::call_timeout).
///
/// The requests are sent on [the runtime of the handle](crate::Leases#its-runtime). If that ends, the call ends with
/// [`Error::RuntimeEnded`].
///
/// # Cancel safety
///
/// Dropping the future gives up its position in the queue: a new call starts at the end. If a request is under
/// way at that moment, its permits may be lost, unless another task of this process waits for them. Permits that were
/// granted and not yet taken are lost.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct TakePermit {
    limits: Result<Limits, Error>,
    permits: u32,
    /// How long it waits. `None` if the wait has no bound.
    wait: Option<Duration>,
}

impl TakePermit {
    /// Bounds the wait for the permits. Without this option the wait has no bound. If a request is under way when the
    /// time is over, the call still waits for its answer. With a time of zero the call sends at most one request, like
    /// [`Limiter::try_permits`].
    pub fn wait_for(mut self, time: Duration) -> Self {
        self.wait = Some(time);
        self
    }
}

impl IntoFuture for TakePermit {
    type Output = Result<Permit, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.limits?.take(self.permits, self.wait).await })
    }
}
