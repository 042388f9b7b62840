//! The guard of a held lock.

use std::{fmt, mem, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    AcquireRequest, Error, Fence, Grant, Key, LossReason, ReleaseAnswer, ReleaseRequest,
    RenewAnswer, RenewRequest,
    deadline::{Validity, deadline},
    keeper::{self, Abandoned, Residue},
    leases::Shared,
    record::LeaseId,
    tries::Tries,
};

/// A lock that is held until it is released, dropped, or runs out of time.
///
/// Dropping it releases it in the background: that is a message to a task, so it works anywhere
/// and takes no time, but nobody learns whether it succeeded, and a program that ends right after
/// it may end before it was carried out. [`Lease::release`] waits and reports.
///
/// # What it guarantees
///
/// While [`is_live`](Lease::is_live) says so, no other lease on the key is granted. Between that
/// look and what is done on its strength the process may be paused for any length of time; where
/// that matters, hand the [`fence`](Lease::fence) to the protected resource and let it refuse an
/// older one.
#[must_use = "a lease that is dropped is released at once"]
pub struct Lease {
    shared: Arc<Shared>,
    key: Key,
    id: LeaseId,
    fence: Fence,
    ttl: Duration,
    acquired_at: DateTime<Utc>,
    validity: Mutex<Validity>,
    /// What may still come of the requests that did not give this lease.
    residue: Residue,
    /// Released, or left to its ttl: nothing to do on drop.
    settled: bool,
}

impl Lease {
    pub(crate) fn new(
        shared: Arc<Shared>,
        request: &AcquireRequest,
        grant: &Grant,
        validity: Validity,
        residue: Residue,
    ) -> Self {
        Self {
            shared,
            key: request.key.clone(),
            id: request.lease,
            fence: grant.fence,
            ttl: request.ttl,
            acquired_at: grant.acquired_at,
            validity: Mutex::new(validity),
            residue,
            settled: false,
        }
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The name of this grant, as it stands in the lock's document.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// The fencing token: greater than that of every earlier grant of the key.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Who holds it, as others see it.
    pub fn owner(&self) -> &str {
        &self.shared.owner
    }

    /// The time to live that each renewal gives anew.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// When it was granted, on the server's clock.
    pub fn acquired_at(&self) -> DateTime<Utc> {
        self.acquired_at
    }

    /// How long the lease may be counted on without a renewal; zero once it is lost.
    ///
    /// This is by the clock of this process, from the instant before the request was sent, less
    /// the clock margin: it is over before the server gives the key to another.
    pub fn remaining(&self) -> Duration {
        self.validity.lock().remaining(Instant::now())
    }

    /// Whether the lease may still be counted on. Once this is `false` it stays so.
    pub fn is_live(&self) -> bool {
        self.loss().is_none()
    }

    /// Gives the lease its ttl anew, counted from now.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is over: stop what depends on it. Any other error leaves the
    /// lease as it was, live for what [`remaining`](Lease::remaining) says, and the renewal may be
    /// tried again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses at most the knowledge of a renewal that was carried out.
    pub async fn renew(&self) -> Result<(), Error> {
        let mut tries = Tries::default();
        loop {
            if let Some(reason) = self.loss() {
                return Err(self.lost(reason));
            }
            match self.send_renewal().await {
                Err(error) => tries.after(error, self.remaining()).await?,
                renewed => return renewed,
            }
        }
    }

    /// Frees the key now and waits until the store has confirmed it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if somebody else was granted the key before this release: what was done under
    /// the lease may have overlapped with the work of another. A lease that expired or was evicted,
    /// with nobody granted since, is released like any other. After any other error the release
    /// goes on in the background until the ttl is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future goes on with the release in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let lost_before = self.loss();
        let mut tries = Tries::default();
        let mut unclear = false;
        loop {
            match self.send_release().await {
                Ok(answer) => {
                    self.settled = true;
                    return match answer {
                        ReleaseAnswer::Released => Ok(()),
                        // An earlier try was carried out, and its answer got lost. But what was over
                        // before the first try may have been another's by then.
                        ReleaseAnswer::NotHeld if unclear && lost_before.is_none() => Ok(()),
                        ReleaseAnswer::NotHeld => Err(self.lost(LossReason::TakenOver)),
                    };
                }
                Err(error) => {
                    unclear |= error.is_ambiguous();
                    tries.after(error, self.ttl).await?;
                }
            }
        }
    }

    /// Lets go of the guard and leaves the key held until its ttl is over.
    ///
    /// For a job that must run once per tick of a schedule, by whoever comes first: take a key that
    /// names the tick, and detach the lease when the work is done. A scheduler that comes a little
    /// later finds the key held. (`examples/run_once.rs`)
    pub fn detach(mut self) {
        self.settled = true;
        // Nobody may release this lease any more, on whichever request it was granted.
        self.residue = Residue::default();
    }

    async fn send_renewal(&self) -> Result<(), Error> {
        let store = self.shared.store.clone();
        let request = [RenewRequest::new(self.key.clone(), self.id, self.ttl)];
        let work = async move { store.renew(&request).await };
        // An answer after the deadline is of no use.
        let limit = self.shared.call_timeout.min(self.remaining());
        let sent = Instant::now();
        let mut answers = keeper::call("renew", limit, work).await?;
        match answers.pop().transpose()? {
            Some(RenewAnswer::Renewed(grant)) => {
                let until = deadline(sent, &grant, self.shared.clock_margin);
                let renewed = self.validity.lock().renewed(until, Instant::now());
                renewed.map_err(|reason| self.lost(reason))
            }
            Some(RenewAnswer::Lost(reason)) => {
                self.validity.lock().lose(reason);
                Err(self.lost(reason))
            }
            None => Err(Error::Store {
                store: "the store",
                source: "it left a renewal without an answer".into(),
            }),
        }
    }

    async fn send_release(&self) -> Result<ReleaseAnswer, Error> {
        let store = self.shared.store.clone();
        let request = ReleaseRequest::new(self.key.clone(), self.id);
        let work = async move { store.release(&request).await };
        keeper::call("release", self.shared.call_timeout, work).await
    }

    fn loss(&self) -> Option<LossReason> {
        self.validity.lock().loss(Instant::now())
    }

    fn lost(&self, reason: LossReason) -> Error {
        Error::Lost {
            key: self.key.clone(),
            reason,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // An earlier request may still be granted, now that the key is free.
        if self.settled && self.residue.is_empty() {
            return;
        }
        let deadline = self.validity.lock().deadline();
        self.shared.keeper.abandon(Abandoned {
            key: self.key.clone(),
            lease: self.id,
            granted: !self.settled,
            until: deadline + self.shared.clock_margin,
            residue: mem::take(&mut self.residue),
        });
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.key)
            .field("id", &self.id)
            .field("fence", &self.fence)
            .field("owner", &self.shared.owner)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
