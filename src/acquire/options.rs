//! `LeaseOptions`: the options that the builders of an acquire collect, and `AcquireContext`: the parts of a handle that
//! its acquires use.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    key::{FromMemory, Keys, RecentKeys, Want},
    messages::{AcquireRequest, OwnLeases, Turn},
    model::{
        Access, Error, Key, LeaseId, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_TTL, Mode, Tick,
        WaitPolicy, validation,
    },
};

/// The parts of a handle that its acquires use.
pub(crate) struct AcquireContext {
    pub(crate) keys: Arc<Keys>,
    /// The owner of the leases, unless an acquire names another owner.
    pub(crate) owner: Arc<str>,
    /// The keys that were held when this handle last tried to acquire them without waiting, each until a holder
    /// expires. Another attempt is likely to be refused too. A read of the document of a held key costs a database less
    /// than a refused change. So the request for one of these keys tells the store that it may read first.
    pub(crate) likely_held: Mutex<RecentKeys>,
    /// For how long leases stay with this process after their last use, unless an acquire says otherwise.
    pub(crate) sticky: Option<Duration>,
}

impl fmt::Debug for AcquireContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("store", &self.keys.store)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// The options of a lease. They are checked when the builder is awaited, so that the call site needs only one `?`.
#[derive(Clone, Debug)]
pub(crate) struct LeaseOptions {
    pub(crate) context: Arc<AcquireContext>,
    pub(crate) asked: AskedFor,
    pub(crate) wait_policy: WaitPolicy,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) keep_alive: bool,
    /// Whether the key is one of several, all or none.
    pub(crate) is_of_set: bool,
    /// For how long the lease stays with this process after its last use. `None` if it does not stay.
    pub(crate) sticky: Option<Duration>,
    /// Whether this acquire always asks the store, and its lease serves no other task.
    pub(crate) is_plain: bool,
}

/// What the request says.
#[derive(Clone, Debug)]
pub(crate) struct AskedFor {
    pub(crate) ttl: Duration,
    pub(crate) owner: Option<Arc<str>>,
    /// The error if more permits are asked for than there are, or none.
    pub(crate) access: Result<Access, Error>,
    /// The leases to be taken over are looked up when the acquire begins.
    pub(crate) own_leases: OwnLeases,
    pub(crate) note: Option<Arc<str>>,
    /// The tick that is to be done under the lease.
    pub(crate) tick: Option<Tick>,
    /// Whether the acquire comes before the processes that wait for the key.
    pub(crate) turn: Turn,
}

impl LeaseOptions {
    pub(crate) fn new(
        context: Arc<AcquireContext>,
        ttl: Duration,
        wait_policy: WaitPolicy,
    ) -> Self {
        let sticky = context.sticky;
        Self {
            context,
            asked: AskedFor {
                ttl,
                owner: None,
                access: Ok(Access::Exclusive),
                own_leases: OwnLeases::Conflict,
                note: None,
                tick: None,
                turn: Turn::Behind,
            },
            wait_policy,
            min_hold: None,
            max_hold: None,
            keep_alive: false,
            is_of_set: false,
            sticky,
            is_plain: false,
        }
    }

    pub(crate) fn owner(&self) -> &Arc<str> {
        self.asked.owner.as_ref().unwrap_or(&self.context.owner)
    }

    /// The minimum hold and the maximum hold.
    pub(super) fn holds(&self) -> [Option<Duration>; 2] {
        [self.min_hold, self.max_hold]
    }

    /// The fields of the acquire's span.
    pub(crate) fn fields(&self) -> (Mode, &str, Duration) {
        let access = self.asked.access.as_ref();
        // Only permits can be asked for in a wrong way.
        let mode = access.map_or(Mode::Permits, |it| it.mode());
        (mode, self.owner(), self.asked.ttl)
    }

    /// What a task wants of this key that began to ask at `since`.
    pub(super) fn want(&self, key: Key, since: Instant) -> Result<Want, Error> {
        let asked = &self.asked;
        let takes_over = matches!(asked.own_leases, OwnLeases::TakenOver(_));
        let needs_document =
            asked.tick.is_some() || self.min_hold.is_some() || self.is_plain || takes_over;
        let memory = if needs_document {
            FromMemory::Never
        } else if asked.owner.is_some() || self.max_hold.is_some() {
            FromMemory::IfItStays
        } else {
            FromMemory::Always
        };
        let can_stay = matches!(asked.access, Ok(Access::Exclusive | Access::Shared));
        // A reentrant lease may have the fence of another one.
        let is_reentrant = asked.own_leases == OwnLeases::Beside;
        let can_stay = can_stay && !needs_document && !is_reentrant;
        Ok(Want {
            request: Arc::new(self.request(key)?),
            stays_for: self.sticky.filter(|_| can_stay),
            memory,
            since,
            wait_policy: self.wait_policy,
            // The first requests of a set are never repeated, not even when no answer comes. The set then acquires its
            // keys one after the other, and would have to wait for a lease that the repeated request was granted.
            repeats: !self.is_of_set || self.wait_policy != WaitPolicy::None,
        })
    }

    /// The request for this key, under a new lease id.
    fn request(&self, key: Key) -> Result<AcquireRequest, Error> {
        let ttl = validation::checked_ttl(self.asked.ttl, self.context.keys.clock_margin)?;
        let owner = self.owner().clone();
        let bytes = owner.len();
        if bytes == 0 || bytes > MAX_OWNER_BYTES {
            return Err(Error::InvalidOwner { bytes });
        }
        let access = self.asked.access.clone()?;
        if let Some(min_hold) = self.min_hold.filter(|time| *time > MAX_TTL) {
            return Err(Error::InvalidMinHold { min_hold });
        }
        if let Some(max_hold) = self.max_hold.filter(|time| *time < self.asked.ttl) {
            let ttl = self.asked.ttl;
            return Err(Error::InvalidMaxHold { max_hold, ttl });
        }
        let bytes = self.asked.note.as_ref().map_or(0, |note| note.len());
        if bytes > MAX_NOTE_BYTES {
            return Err(Error::InvalidNote { bytes });
        }
        let mut request = AcquireRequest::exclusive(key, LeaseId::random(), owner, ttl);
        request.access = access;
        request.own_leases = self.asked.own_leases.clone();
        request.note = self.asked.note.clone();
        request.tick = self.asked.tick;
        request.turn = self.asked.turn;
        Ok(request)
    }
}

/// Implements the methods of a builder for the options that all acquires have.
macro_rules! lease_options {
    ($builder:ty) => {
        impl $builder {
            /// Requests a shared lease, which other shared leases of the key do not conflict with. It is for readers of
            /// data that a writer, with an exclusive lease, must not change meanwhile.
            ///
            /// Each shared lease has its own expiry. A key has at most
            /// [`MAX_HOLDERS`](crate::limits::MAX_HOLDERS) live holders.
            /// [`Lease::upgrade`](crate::Lease::upgrade) makes a shared lease exclusive.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use leasehold::{Leases, MemoryStore};
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), leasehold::Error> {
            /// # let leases = Leases::new(MemoryStore::new());
            /// let ttl = Duration::from_secs(30);
            /// let one = leases.acquire("index:books", ttl).shared().await?;
            /// let two = leases.acquire("index:books", ttl).shared().await?;
            /// // Both readers hold the key. A writer, without `shared`, would wait for both releases.
            /// one.release().await?;
            /// two.release().await
            /// # }
            /// ```
            pub fn shared(mut self) -> Self {
                self.options.asked.access = Ok(crate::model::Access::Shared);
                self
            }

            /// Requests `permits` of `of` permits: a semaphore over all processes. The lease conflicts with exclusive
            /// and shared leases, and with other leases of permits if there are not enough permits left.
            ///
            /// The store does not keep the capacity `of`. Each request is checked against the capacity that it
            /// names. So while processes run with different capacities, each process applies its own.
            ///
            /// Whatever the capacity, at most [`MAX_HOLDERS`](crate::limits::MAX_HOLDERS) leases have permits
            /// at once.
            ///
            /// The acquire returns [`Error::InvalidPermits`](crate::Error::InvalidPermits) if `permits` is 0 or more
            /// than `of`.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use leasehold::{Leases, MemoryStore};
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), leasehold::Error> {
            /// # let leases = Leases::new(MemoryStore::new());
            /// // At most four imports run at the same time, over all processes.
            /// let import = leases.acquire("imports", Duration::from_secs(30)).permits(1, 4).await?;
            /// import.release().await
            /// # }
            /// ```
            pub fn permits(mut self, permits: u32, of: u32) -> Self {
                let permits = crate::model::Permits::new(permits.into(), of.into());
                self.options.asked.access = permits.map(crate::model::Access::Permits);
                self
            }

            /// Sets the owner that other processes see on the key, 1 to 512 bytes of text. The default is the [owner of
            /// the handle](crate::LeasesBuilder::owner).
            pub fn owner(mut self, owner: impl Into<std::sync::Arc<str>>) -> Self {
                self.options.asked.owner = Some(owner.into());
                self
            }

            /// Makes the request reentrant: leases of the same owner do not conflict with it. The lease has the
            /// greatest of their fences. The key is free when the last of these leases is released or has expired.
            ///
            /// Only the later request has to be reentrant. By default all tasks of a handle have the same
            /// owner, so give tasks that must exclude each other different [`owner`](Self::owner)s.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use leasehold::{Leases, MemoryStore};
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), leasehold::Error> {
            /// # let leases = Leases::new(MemoryStore::new());
            /// let ttl = Duration::from_secs(30);
            /// let outer = leases.acquire("account:7", ttl).owner("request-18").await?;
            /// // A function that is called under `outer`, and locks the key itself:
            /// let inner = leases.acquire("account:7", ttl).owner("request-18").reentrant().await?;
            /// assert_eq!(inner.fence(), outer.fence());
            /// # inner.release().await?;
            /// # outer.release().await
            /// # }
            /// ```
            pub fn reentrant(mut self) -> Self {
                self.options.asked.own_leases = crate::messages::OwnLeases::Beside;
                self
            }

            /// Takes over the leases that this owner has of the key: the grant ends them. Use it for a worker that was
            /// restarted under its old [`owner`](Self::owner), which need not wait until the lease of its dead process
            /// expires, and comes before the processes that wait for the key. Leases of other owners are respected. So
            /// are those of this handle: its tasks wait for each other.
            ///
            /// The lease has a new fence, so writes of the old process are stopped where [fences](crate::Lease::fence)
            /// are checked. If that process still runs, it learns of it by its next renewal, as after an eviction.
            ///
            /// The key is read first, and those leases are taken over that are found then, each by its id. So a request
            /// that is carried out late ends no newer lease. An error of this read, after three tries if a retry could
            /// help, is the error of the acquire.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use leasehold::{Leases, MemoryStore};
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), leasehold::Error> {
            /// # let store = std::sync::Arc::new(MemoryStore::new());
            /// # let leases = Leases::new(store.clone());
            /// let ttl = Duration::from_secs(30);
            /// let before = leases.acquire("shard-7", ttl).owner("worker-3").await?;
            /// // The process dies, and another one starts under the same name.
            /// # let leases = Leases::new(store);
            /// let now = leases.acquire("shard-7", ttl).owner("worker-3").take_over().await?;
            /// assert!(now.fence() > before.fence());
            /// # assert!(before.renew().await.is_err());
            /// # now.release().await
            /// # }
            /// ```
            pub fn take_over(mut self) -> Self {
                let none = std::sync::Arc::default();
                self.options.asked.own_leases = crate::messages::OwnLeases::TakenOver(none);
                self
            }

            /// Sets a minimum hold: the key stays held until this long after the grant, even if the lease is released
            /// or dropped earlier. Use this for work that must not run again within that time. For a job that must run
            /// once per tick of a schedule, use [`Leases::once`](crate::Leases::once).
            ///
            /// The time counts on the server's clock, in whole milliseconds. It is at most
            /// [`MAX_TTL`](crate::limits::MAX_TTL): otherwise the acquire returns
            /// [`Error::InvalidMinHold`](crate::Error::InvalidMinHold). Only a release of a live lease applies it. If
            /// the holder dies, the key is free when the ttl is over. A [`reentrant`](Self::reentrant) request of the
            /// same owner is let in during the rest of it. It does not apply to a grant that the caller did
            /// not get, nor to the leases of a set that was not granted as a whole.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use leasehold::{Attempt, Leases, MemoryStore};
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), leasehold::Error> {
            /// # let leases = Leases::new(MemoryStore::new());
            /// let (ttl, hour) = (Duration::from_secs(30), Duration::from_secs(3600));
            /// // At most one mail an hour, although sending it takes less than a second.
            /// if let Attempt::Acquired(lease) = leases.try_acquire("mail:pod-3", ttl).min_hold(hour).await? {
            ///     // Send the mail.
            ///     lease.release().await?;
            /// }
            /// # Ok(())
            /// # }
            /// ```
            pub fn min_hold(mut self, time: std::time::Duration) -> Self {
                self.options.min_hold = Some(time);
                self
            }

            /// Sets a maximum hold: this long after the grant the lease is lost, with
            /// [`LossReason::HeldTooLong`](crate::LossReason::HeldTooLong), even if renewals succeed. Use this with
            /// [`keep_alive`](Self::keep_alive), so that a holder whose work hangs while its process still renews the
            /// lease does not hold the key for ever.
            ///
            /// The time counts on the clock of this process, from the instant before the granted request was sent. For
            /// a set it counts from the last grant. It is at least the ttl: otherwise the acquire returns
            /// [`Error::InvalidMaxHold`](crate::Error::InvalidMaxHold). [`at_risk`](crate::Lease::at_risk) warns when a
            /// third of the ttl is left.
            ///
            /// No renewal is sent in the background once the lease is live until the end of the maximum hold. So an
            /// eviction after the last renewal is noticed only at that end. On the server the key is free when the
            /// guard is released or dropped. If the holder hangs and keeps its guard, the key is free when the ttl of
            /// the last renewal is over: about a third of the ttl after the end, or up to a whole ttl after a late
            /// [`renew`](crate::Lease::renew).
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use leasehold::{Leases, MemoryStore};
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// # let leases = Leases::new(MemoryStore::new());
            /// # async fn publish() -> std::io::Result<u32> { Ok(3) }
            /// // A publish that takes longer than ten minutes is stopped.
            /// let acquire = leases.acquire("report:42", Duration::from_secs(30));
            /// let acquire = acquire.max_hold(Duration::from_secs(600));
            /// let published = acquire.with(async |_| publish().await).await?;
            /// # assert_eq!(published, 3);
            /// # Ok(())
            /// # }
            /// ```
            pub fn max_hold(mut self, time: std::time::Duration) -> Self {
                self.options.max_hold = Some(time);
                self
            }

            /// Makes the acquire come before the other processes that wait for the key. It does not wait in turn, and
            /// takes no place among them. Use this for work that is more urgent than theirs, or if the key should go to
            /// the process that happens to request it first. [`Acquire`](crate::Acquire) says how processes take turns.
            ///
            /// It comes before the tasks of its own process that wait, too. They keep their place.
            pub fn barging(mut self) -> Self {
                self.options.asked.turn = crate::messages::Turn::Barging;
                self
            }

            /// Lets the lease stay with this process after its last use, until no task has asked for the key for
            /// `idle`. The next acquire of the key in this process is then granted from memory, without a request.
            ///
            /// It is for a key that mostly one process uses: a partition, the shard of a customer, the host of a
            /// session. While the lease stays, it is kept alive, and other processes are refused the key. A process
            /// that waits gets it within a second or so, after the present holder is done. The key then does not stay
            /// here for 30 s, so that processes that share it do not wait for each other.
            /// `docs/leases.md` says what is granted from memory, and what a process that waits pays.
            ///
            /// **It is not for jobs that run once**, nor for keys that go from process to process:
            /// [`try_acquire`](crate::Leases::try_acquire) of another process finds the key held although no task uses
            /// it. If this process dies, the key is free when the ttl is over.
            ///
            /// Each lease that is granted from memory has its own ttl, and all calls of a guard. An exclusive one has a
            /// [fence](crate::Lease::fence) of its own, and those under a [`shared`](Self::shared) lease have its fence.
            /// This has no effect with [`permits`](Self::permits), [`reentrant`](Self::reentrant) and
            /// [`min_hold`](Self::min_hold). A time of zero turns off what the
            /// [handle](crate::LeasesBuilder::sticky) says.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use leasehold::{Leases, MemoryStore};
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), leasehold::Error> {
            /// # let leases = Leases::new(MemoryStore::new());
            /// let (ttl, idle) = (Duration::from_secs(30), Duration::from_secs(60));
            /// let mut before = None;
            /// for _ in 0..1_000 {
            ///     // Only the first of these asks the store.
            ///     let lease = leases.acquire("partition:7", ttl).sticky(idle).await?;
            ///     assert!(before < Some(lease.fence()));
            ///     before = Some(lease.fence());
            ///     lease.release().await?;
            /// }
            /// # leases.close().await;
            /// # Ok(())
            /// # }
            /// ```
            pub fn sticky(mut self, idle: std::time::Duration) -> Self {
                self.options.sticky = (!idle.is_zero()).then_some(idle);
                self
            }

            /// Sets a note for people, which [`inspect`](crate::Leases::inspect) and [`list`](crate::Leases::list)
            /// show, of at most [`MAX_NOTE_BYTES`](crate::limits::MAX_NOTE_BYTES) bytes. An acquire with a longer note
            /// returns [`Error::InvalidNote`](crate::Error::InvalidNote). A note must not contain secrets.
            pub fn note(mut self, note: impl Into<std::sync::Arc<str>>) -> Self {
                self.options.asked.note = Some(note.into());
                self
            }

            /// Renews the lease in the background about every third of its ttl, until its guard is
            /// released, dropped or detached, or the lease is lost.
            ///
            /// Renewals that are due together are sent in batches of up to
            /// [`MAX_RENEWALS`](crate::store::MAX_RENEWALS). A renewal that fails is tried again until the lease
            /// expires. [`at_risk`](crate::Lease::at_risk) warns before a loss, and [`lost`](crate::Lease::lost)
            /// returns the reason of a loss.
            ///
            /// If the answer that grants the lease comes so late that the renewal is due already, the acquire renews the
            /// lease before it ends. So work does not begin on what is left of the ttl. If that renewal fails, an
            /// acquire that waits requests the key again, and another one returns the error. A store whose answers
            /// always take longer than a third of the ttl delays the acquire by a ttl at most.
            ///
            /// If more leases are kept alive than the store can renew, renewals are late long before the first lease is
            /// lost. An acquire with `keep_alive` then waits until renewals are in time, for at most a third of its
            /// ttl. An event and a metric report the wait. `docs/observability.md` describes them, and says how many
            /// leases a server can renew.
            ///
            /// Leases are renewed on [the runtime of the handle](crate::Leases#its-runtime). A current-thread runtime
            /// stands still while no thread drives it, or while a task computes, and the renewals with it. On a runtime
            /// with several threads a task that computes holds up no renewal while another thread is idle.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use leasehold::{Leases, MemoryStore};
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// # let leases = Leases::new(MemoryStore::new());
            /// # async fn lead() -> std::io::Result<()> { Ok(()) }
            /// let lease = leases.acquire("leader", Duration::from_secs(10)).keep_alive().await?;
            /// tokio::select! {
            ///     done = lead() => done?,
            ///     why = lease.lost() => return Err(why.into()),
            /// }
            /// lease.release().await?;
            /// # Ok(())
            /// # }
            /// ```
            pub fn keep_alive(mut self) -> Self {
                self.options.keep_alive = true;
                self
            }
        }
    };
}
pub(crate) use lease_options;
