//! `Leases`, the handle of an application, and its builder. The handle acquires leases, and is closed at the end of the
//! program.

use std::{fmt, sync::Arc, time::Duration};

use tracing::Instrument;

use super::leader::Leader;
use crate::{
    acquire::{Acquire, AcquireAll, AcquireContext, LeaseOptions, Resume, RunOnce, TryAcquire},
    key::Keys,
    lease::Ticket,
    limiter::{Limiter, LimiterContext},
    model::{Key, Quota, Tick, WaitPolicy},
    store::Store,
    telemetry,
};

/// The default of [`LeasesBuilder::call_timeout`].
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The handle of an application: acquires leases from a store, and lists and frees locks.
///
/// An application makes one handle and keeps it for as long as it runs. A clone is cheap. Clones share their leases and
/// their queues of waiters, and are closed together.
///
/// # Its runtime
///
/// A handle belongs to the tokio runtime on which it was first used, as the client of a database does: its leases are
/// renewed there, and released in the background. Other runtimes may use it too while that one runs. When that runtime
/// ends, all leases of the handle are lost, and later calls return
/// [`Error::RuntimeEnded`](crate::Error::RuntimeEnded): each runtime, of each test for example, needs a handle of its own.
/// If nothing drives that runtime, nothing goes on, and others may wait for ever.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Attempt, Leases, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let leases = Leases::new(MemoryStore::new());
/// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
/// match leases.try_acquire("report:42", Duration::from_secs(30)).await? {
///     Attempt::Acquired(_) => println!("the key was free"),
///     Attempt::Held(held) => println!("held by {} for {:?}", held.owner(), held.expires_in()),
/// }
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Leases {
    pub(super) acquires: Arc<AcquireContext>,
    limiters: Arc<LimiterContext>,
}

impl Leases {
    /// Makes a handle on this store, with the defaults of [`Leases::builder`]. It sends nothing and spawns no task.
    ///
    /// A store that is chosen when the program runs is an [`Arc<dyn Store>`](Store), which is a store too.
    pub fn new(store: impl Store) -> Self {
        Self::builder(store).build()
    }

    /// Makes a builder for a handle on this store. [`LeasesBuilder`] has an example.
    pub fn builder(store: impl Store) -> LeasesBuilder {
        LeasesBuilder {
            clock_margin: store.clock_margin(),
            store: Arc::new(store),
            owner: None,
            call_timeout: CALL_TIMEOUT,
            sticky: None,
        }
    }

    /// The owner that other processes see on a held key, unless an acquire names another owner.
    pub fn owner(&self) -> &str {
        &self.acquires.owner
    }

    /// Requests the key once, without waiting until it is free.
    ///
    /// Await the returned builder: it resolves to [`Attempt::Acquired`](crate::Attempt::Acquired) or
    /// [`Attempt::Held`](crate::Attempt::Held). [`TryAcquire`] lists the errors.
    ///
    /// The key is 1 to 512 bytes of text. The ttl is cut to whole milliseconds. It is at least 1 ms, at least twice the
    /// clock margin, and at most [`MAX_TTL`](crate::limits::MAX_TTL).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Attempt, Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// match leases.try_acquire("report:42", Duration::from_secs(30)).await? {
    ///     Attempt::Acquired(lease) => lease.release().await?,
    ///     Attempt::Held(held) => println!("held by {} for {:?}", held.owner(), held.expires_in()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire(&self, key: impl AsRef<str>, ttl: Duration) -> TryAcquire {
        TryAcquire {
            key: Key::new(key),
            options: LeaseOptions::new(self.acquires.clone(), ttl, WaitPolicy::None),
        }
    }

    /// Waits until the key is free and acquires it, like a mutex.
    ///
    /// Await the returned builder: it resolves to a [`Lease`](crate::Lease). [`Acquire`] lists the options and the
    /// errors. Key and ttl are as for [`Leases::try_acquire`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).wait_for(Duration::from_secs(5)).await?;
    /// println!("granted, with fence {}", lease.fence());
    /// lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self, key: impl AsRef<str>, ttl: Duration) -> Acquire {
        Acquire {
            key: Key::new(key),
            options: LeaseOptions::new(self.acquires.clone(), ttl, WaitPolicy::Endless),
        }
    }

    /// Waits for several keys, and acquires all of them or none.
    ///
    /// Await the returned builder: it resolves to a [`LeaseSet`](crate::LeaseSet). [`AcquireAll`] lists the errors. A
    /// key that is named twice is acquired once. Keys and ttl are as for [`Leases::try_acquire`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let both = leases.acquire_all(["account:7", "account:3"], Duration::from_secs(30)).await?;
    /// // Move money from one to the other.
    /// both.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_all<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        ttl: Duration,
    ) -> AcquireAll {
        let mut options = LeaseOptions::new(self.acquires.clone(), ttl, WaitPolicy::Endless);
        options.is_of_set = true;
        let keys = keys.into_iter().map(Key::new).collect();
        AcquireAll { keys, options }
    }

    /// Makes a job that runs once per tick, over all processes.
    ///
    /// The store keeps the newest tick that is done. So a scheduler of another host that fires a minute late does not
    /// run the job again, although the work took only a second and the lock is free.
    ///
    /// The tick names one run of the job, and must be the same in all processes: the scheduled time, the date, a
    /// version or a counter. Ticks are ordered: a tick that is older than the newest done tick never runs. The answer
    /// is then [`Once::Superseded`](crate::jobs::Once::Superseded), which is not that of a tick that is done.
    ///
    /// This call sends nothing and checks nothing; [`RunOnce::run`](crate::jobs::RunOnce::run) does, and has an
    /// example. The key is 1 to 512 bytes of text. A job and an ordinary lease of the same key use the same lock.
    pub fn once(&self, key: impl AsRef<str>, tick: impl Into<Tick>) -> RunOnce {
        RunOnce::new(self.acquires.clone(), Key::new(key), tick.into())
    }

    /// Makes a candidate for leader. Of all candidates that [run](Leader::run) with this key, one leads, and the others
    /// wait.
    ///
    /// This call sends nothing and checks nothing; [`Leader::run`] does. Key and ttl are as for
    /// [`Leases::try_acquire`]. If the leader dies, there is no leader until the ttl is over.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, jobs::Term};
    /// # async fn lead(term: &Term) -> std::io::Result<()> { Ok(()) }
    /// # async fn example(leases: Leases) -> Result<(), Error> {
    /// let leader = leases.leader("scheduler", Duration::from_secs(10));
    /// leader.run(async |term| lead(term).await).await
    /// # }
    /// ```
    pub fn leader(&self, key: impl AsRef<str>, ttl: Duration) -> Leader {
        let mut acquire = self.acquire(key, ttl).keep_alive();
        // The other candidates see the document, and what it says must be true.
        acquire.options.is_plain = true;
        Leader { acquire }
    }

    /// Continues a lease that this process or another one turned into a ticket, by
    /// [`Lease::into_ticket`](crate::Lease::into_ticket).
    ///
    /// Await the returned builder: it resolves to [`Resumed::Live`](crate::Resumed::Live), with the same fence and a
    /// new ttl from now, or [`Resumed::Gone`](crate::Resumed::Gone) if the lease was lost. [`Resume`] lists the errors.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore, Resumed};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let store = MemoryStore::new();
    /// # let leases = Leases::new(store.clone());
    /// let lease = leases.acquire("upload:7", Duration::from_secs(30)).await?;
    /// let ticket = lease.into_ticket();
    ///
    /// // In another process, which got the ticket with its job:
    /// # let leases = Leases::new(store);
    /// match leases.resume(&ticket).await? {
    ///     Resumed::Live(lease) => lease.release().await?,
    ///     Resumed::Gone(reason) => println!("the lease was lost: {reason}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn resume(&self, ticket: &Ticket) -> Resume {
        Resume {
            context: self.acquires.clone(),
            ticket: ticket.clone(),
            keep_alive: false,
        }
    }

    /// Makes a limiter, which grants at most `limit` permits per window. The server's clock measures the windows.
    ///
    /// Its windows are fixed unless [`Limiter::smooth`] says otherwise. This call sends nothing and checks nothing. The
    /// first request for a permit fails for a limit of 0 ([`Error::InvalidLimit`](crate::Error::InvalidLimit)), and a
    /// window below a millisecond or above [`MAX_WINDOW`](crate::limits::MAX_WINDOW)
    /// ([`Error::InvalidWindow`](crate::Error::InvalidWindow)). The window is cut to whole milliseconds. The key is 1
    /// to 512 bytes of text. A lock and a limiter may have the same key.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let limiter = leases.limiter("partner-api", 10, Duration::from_secs(1));
    /// limiter.permit().await?;
    /// // Call the partner.
    /// # Ok(())
    /// # }
    /// ```
    pub fn limiter(&self, key: impl AsRef<str>, limit: u32, window: Duration) -> Limiter {
        let quota = Quota::fixed(limit, window);
        Limiter::new(&self.limiters, Key::new(key), quota)
    }

    /// Releases every lease of this handle and its clones, and waits until they are released. Call it at the end of a
    /// program.
    ///
    /// From now on every acquire returns [`Error::Closed`](crate::Error::Closed), also one that is waiting. The leases
    /// of guards that still exist are lost ([`LossReason::Closed`](crate::LossReason::Closed)). The close also waits
    /// for the releases of guards that were dropped before, and for acquires that are under way. It does not wait for
    /// other requests, because they leave nothing that has to be released.
    ///
    /// If the store does not answer, the close gives up after the longest ttl plus a few times the
    /// [`call_timeout`](LeasesBuilder::call_timeout). With more than a thousand leases it takes longer. Put
    /// `tokio::time::timeout` around it if the program must end sooner.
    ///
    /// The releases are sent on the runtime that awaits it, and outside of one on [that of the handle](Leases#its-runtime),
    /// as those that began before. If nothing drives that runtime, it waits for them for ever. If it has ended, nothing is
    /// left to wait for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let lease = leases.acquire("leader", Duration::from_secs(10)).keep_alive().await?;
    /// leases.close().await;
    /// assert!(!lease.is_live());
    /// let late = leases.try_acquire("leader", Duration::from_secs(10)).await;
    /// assert!(matches!(late, Err(Error::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only ends the wait: the releases go on. A second call waits for them again.
    pub async fn close(&self) {
        let close = self.acquires.keys.close();
        close.instrument(telemetry::close()).await;
    }

    /// Whether [`close`](Leases::close) was called, or [the runtime of the handle](Leases#its-runtime) has ended.
    pub fn is_closed(&self) -> bool {
        self.limiters.lifecycle.is_closing()
    }
}

/// Options for [`Leases`](crate::Leases), made by [`Leases::builder`](crate::Leases::builder).
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Leases, MemoryStore};
///
/// let leases = Leases::builder(MemoryStore::new())
///     .owner("reports-pod-3")
///     .call_timeout(Duration::from_secs(3))
///     .build();
/// assert_eq!(leases.owner(), "reports-pod-3");
/// ```
#[derive(Debug)]
#[must_use = "call build to get the leases"]
pub struct LeasesBuilder {
    store: Arc<dyn Store>,
    owner: Option<Arc<str>>,
    clock_margin: Duration,
    call_timeout: Duration,
    sticky: Option<Duration>,
}

impl LeasesBuilder {
    /// Sets the owner, which other processes see on a held key: the name of a pod, a host or a service, for example.
    /// The owner is 1 to 512 bytes of text. An acquire with another length returns
    /// [`Error::InvalidOwner`](crate::Error::InvalidOwner). The default is the name of the host, the process id and
    /// eight random hexadecimal digits.
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the clock margin: how long before the expiry on the server the holder stops counting on its lease. The
    /// default is the margin that the [store](crate::Store::clock_margin) asks for. MongoDB, Elasticsearch and
    /// OpenSearch ask for 100 ms, because after a failover another node's clock decides. SQLite asks for 10 ms, or 100
    /// ms on a host without a clock that counts from its boot. Memory asks for the millisecond of its clock. A ttl must
    /// be at least twice the margin; an acquire with a shorter ttl returns
    /// [`Error::InvalidTtl`](crate::Error::InvalidTtl).
    pub fn clock_margin(mut self, margin: Duration) -> Self {
        self.clock_margin = margin;
        self
    }

    /// Sets how long the library waits for the answer to one request before it gives the request up or sends it again.
    /// The default is 10 s.
    ///
    /// An acquire that does not wait, a renewal and a release send a request up to three times. So without any answer
    /// they return [`Error::TimedOut`](crate::Error::TimedOut) after at most three times this limit. A late answer to
    /// an earlier of these requests counts. No acquire takes longer than the ttl for its answer, because a lease that
    /// is granted later would have expired. The requests that keep leases alive have a limit of their own, a sixth of
    /// the ttl.
    pub fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }

    /// Makes all acquires of the handle [sticky](crate::Acquire::sticky): exclusive and shared leases stay with this process
    /// after their last use, until no task has asked for the key for `idle`. By default they do not stay.
    pub fn sticky(mut self, idle: Duration) -> Self {
        self.sticky = (!idle.is_zero()).then_some(idle);
        self
    }

    /// Makes the handle. It sends nothing and spawns no task.
    pub fn build(self) -> Leases {
        let (store, limit) = (self.store, self.call_timeout);
        let keys = Keys::new(store.clone(), limit, self.clock_margin);
        let lifecycle = keys.lifecycle.clone();
        Leases {
            acquires: Arc::new(AcquireContext {
                keys,
                owner: self.owner.unwrap_or_else(this_process),
                likely_held: parking_lot::Mutex::default(),
                sticky: self.sticky,
            }),
            limiters: Arc::new(LimiterContext {
                store,
                call_timeout: limit,
                lifecycle,
                queues: parking_lot::Mutex::default(),
            }),
        }
    }
}

/// The default owner. It has a random part because a restarted process may get the same process id, as it does
/// in a container.
fn this_process() -> Arc<str> {
    let host = gethostname::gethostname();
    let process = std::process::id();
    let random = crate::random::number();
    format!("{}:{process}:{random:08x}", host.to_string_lossy()).into()
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.acquires, f)
    }
}
