//! The options of an acquire, as the builders collect them.

use std::{fmt, sync::Arc, time::Duration};

use super::context::AcquireContext;
use crate::{
    messages::AcquireRequest,
    model::{Access, Error, Key, LeaseId, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_TTL, validation},
    telemetry::AcquireFields,
};

/// The terms of a lease. They are checked when the builder is awaited, so that the call site needs
/// one `?` and not two.
#[derive(Clone)]
pub(crate) struct LeaseOptions {
    pub(crate) context: Arc<AcquireContext>,
    pub(crate) ttl: Duration,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) access: Access,
    pub(crate) reentrant: bool,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) note: Option<Arc<str>>,
    pub(crate) keep_alive: bool,
    /// Whether the acquire waits while what is kept alive is renewed late.
    pub(crate) gives_way: bool,
}

impl LeaseOptions {
    pub(crate) fn new(context: Arc<AcquireContext>, ttl: Duration) -> Self {
        Self {
            context,
            ttl,
            owner: None,
            access: Access::Exclusive,
            reentrant: false,
            min_hold: None,
            note: None,
            keep_alive: false,
            gives_way: false,
        }
    }

    pub(crate) fn owner(&self) -> &Arc<str> {
        self.owner.as_ref().unwrap_or(&self.context.owner)
    }

    /// The fields of its span.
    pub(crate) fn fields(&self) -> AcquireFields<'_> {
        AcquireFields {
            mode: self.access.mode(),
            owner: self.owner(),
            ttl: self.ttl,
        }
    }

    /// The request for this key, under a new lease id.
    pub(crate) fn request(&self, key: Key) -> Result<AcquireRequest, Error> {
        let ttl = validation::checked_ttl(self.ttl, self.context.clock_margin)?;
        let owner = self.owner().clone();
        let bytes = owner.len();
        if bytes == 0 || bytes > MAX_OWNER_BYTES {
            return Err(Error::InvalidOwner { bytes });
        }
        if let Access::Permits { n, of } = self.access
            && !(1..=of).contains(&n)
        {
            // The builder took both as `u32`.
            let [permits, capacity] = [n, of].map(|it| u32::try_from(it).unwrap_or(u32::MAX));
            return Err(Error::InvalidPermits { permits, capacity });
        }
        if let Some(min_hold) = self.min_hold.filter(|time| *time > MAX_TTL) {
            return Err(Error::InvalidMinHold { min_hold });
        }
        let bytes = self.note.as_ref().map_or(0, |note| note.len());
        if bytes > MAX_NOTE_BYTES {
            return Err(Error::InvalidNote { bytes });
        }
        let mut request = AcquireRequest::exclusive(key, LeaseId::random(), owner, ttl);
        request.access = self.access;
        request.reentrant = self.reentrant;
        request.note = self.note.clone();
        Ok(request)
    }
}

impl fmt::Debug for LeaseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseOptions")
            .field("ttl", &self.ttl)
            .field("access", &self.access)
            .field("keep_alive", &self.keep_alive)
            .finish_non_exhaustive()
    }
}

/// The options that all builders of leases have.
macro_rules! lease_options {
    ($builder:ty) => {
        impl $builder {
            /// Shares the key with other shared leases: for those who read what a writer, with an
            /// exclusive lease, must not change meanwhile.
            ///
            /// Each has an expiry of its own, so one whose holder dies frees its place by itself. A key
            /// has places for [`MAX_HOLDERS`](crate::limits::MAX_HOLDERS) of them.
            /// [`Lease::upgrade`](crate::Lease::upgrade) makes it exclusive.
            pub fn shared(mut self) -> Self {
                self.ask.access = crate::model::Access::Shared;
                self
            }

            /// Takes so many permits of those that there are: a semaphore with leases. It conflicts with
            /// exclusive and shared leases, and with other permits when there are not enough left.
            ///
            /// The capacity is what each request says, and stored nowhere: while processes with
            /// different capacities run side by side, each keeps to its own.
            ///
            /// Whatever the capacity, no more than [`MAX_HOLDERS`](crate::limits::MAX_HOLDERS) leases have some of
            /// them at once.
            ///
            /// Awaiting it gives [`Error::InvalidPermits`](crate::Error::InvalidPermits) for no
            /// permits, and for more than there are.
            pub fn permits(mut self, permits: u32, of: u32) -> Self {
                self.ask.access = crate::model::Access::Permits {
                    n: permits.into(),
                    of: of.into(),
                };
                self
            }

            /// Who the lease belongs to, as others see it; otherwise the
            /// [owner of the handle](crate::LeasesBuilder::owner). 1 to 512 bytes of text.
            pub fn owner(mut self, owner: impl Into<std::sync::Arc<str>>) -> Self {
                self.ask.owner = Some(owner.into());
                self
            }

            /// Does not mind other leases of the same owner: the lease is granted at once beside them,
            /// has their fence, and the key is free when the last of them is released or over.
            ///
            /// Only the later request has to say so. Give the [`owner`](Self::owner) a name that
            /// tells apart what must exclude each other: by default all tasks of a handle have one.
            pub fn reentrant(mut self) -> Self {
                self.ask.reentrant = true;
                self
            }

            /// Keeps the key held for this long after the grant although the lease is released or
            /// dropped before that: for a job that comes to its end so early that a scheduler with
            /// another clock would run it again.
            ///
            /// It counts on the server's clock and in whole milliseconds, and not for a holder that dies:
            /// then the ttl counts; nor for a grant that its caller did not take, or a set of which a part was not to be
            /// had. At most [`MAX_TTL`](crate::limits::MAX_TTL).
            pub fn min_hold(mut self, time: std::time::Duration) -> Self {
                self.ask.min_hold = Some(time);
                self
            }

            /// A remark for people, who see it with [`inspect`](crate::Leases::inspect) and
            /// [`list`](crate::Leases::list); at most
            /// [`MAX_NOTE_BYTES`](crate::limits::MAX_NOTE_BYTES). Keep secrets out of it.
            pub fn note(mut self, note: impl Into<std::sync::Arc<str>>) -> Self {
                self.ask.note = Some(note.into());
                self
            }

            /// Renews the lease in the background at every third of its ttl, until its guard is
            /// released, dropped or detached, or the lease is lost.
            ///
            /// Leases that are due go in batches of up to [`MAX_RENEWALS`](crate::store::MAX_RENEWALS), a few at a time:
            /// ten thousand leases cost a handful of commands. A renewal that fails is tried again until
            /// the lease runs out; [`at_risk`](crate::Lease::at_risk) warns before that, and
            /// [`lost`](crate::Lease::lost) tells of the loss.
            ///
            /// Where more is kept alive than the store can renew, the renewals come late long before the
            /// first lease is lost. An acquire with `keep_alive` then waits for them, for a third of its ttl at
            /// the most, and an event and a metric say so (`docs/observability.md`, which also has how
            /// many leases a server bears).
            ///
            /// The task that renews lives on the runtime of the first acquire, and goes on on that of a later
            /// one when it ends. Where there is none left, the loss of a lease says so.
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
                (self.ask.keep_alive, self.ask.gives_way) = (true, true);
                self
            }
        }
    };
}
pub(crate) use lease_options;
