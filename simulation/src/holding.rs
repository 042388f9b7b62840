//! What a task does with a lease that it has, and how it gives it up.

use std::{future::pending, rc::Rc, time::Duration};

use leasehold::{Lease, Mode, Resumed, Upgrade};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    course::{CALL_TIMEOUT, MARGIN},
    guard::{Guard, Terms},
    judge::Judge,
    task::{CALL, LONGEST_TTL, Task},
};

/// For how long a task keeps a lease at most.
const LONG: Duration = Duration::from_secs(30);
/// A guard that is not live any more is told why within this time.
const TOLD: Duration = Duration::from_millis(1_500);

impl Task {
    /// Has a lease for a while, and gives it up.
    pub async fn holds(&self, guard: Rc<Guard>) {
        let Some(lease) = &guard.lease else {
            return;
        };
        let course = &self.server.course;
        let most = match self.now_and_then(8) {
            _ if course.is_crowded => 5,
            true if !course.is_contended => 3_000,
            _ => 40,
        };
        let _ = timeout(self.millis(most), lease.lost()).await;
        self.ledger.check();
        if self.now_and_then(8) {
            // It enters the lease once more.
            Box::pin(self.acquire(lease.key(), true)).await;
        }
        if self.now_and_then(10) {
            self.renews(lease).await;
        }
        if self.now_and_then(10) {
            self.converts(&guard, lease).await;
        }
        self.ledger.check();
        if !guard.is_live() {
            self.count("lost");
            self.is_told(lease).await;
        }
        if self.now_and_then(4) {
            self.say(|| format!("keeps {}", lease.key()));
            let time = lease.remaining().min(LONG) + Duration::from_millis(100);
            let _ = timeout(time, lease.lost()).await;
        }
        let terms = guard.terms.get();
        self.may_stay(lease.key(), terms.idle);
        if let Some(lease) = guard.into_lease() {
            self.gives_up(lease, terms).await;
        }
    }

    /// The reason why a lease is lost is known when it is lost.
    async fn is_told(&self, lease: &Lease) {
        let lost = async {
            if self.is_wrong(Judge::Told) {
                pending::<()>().await;
            }
            lease.lost().await
        };
        match timeout(TOLD, lost).await {
            Ok(reason) => self.say(|| format!("has lost {}: {reason}", lease.key())),
            Err(_) => {
                let text = format!("nobody says why {lease:?} is lost");
                self.server.state().accuse(Judge::Told, text);
            }
        }
    }

    async fn renews(&self, lease: &Lease) {
        let renewed = timeout(self.millis(60), lease.renew()).await;
        self.count("renewed");
        self.say(|| format!("has renewed {}: {renewed:?}", lease.key()));
    }

    async fn converts(&self, guard: &Guard, lease: &Lease) {
        if lease.mode() == Mode::Permits {
            return;
        }
        let is_short = self.now_and_then(30);
        let limit = if is_short { self.millis(60) } else { CALL };
        self.count("converted");
        self.ledger.takes_back(self.client, lease.key());
        let may_be_shared = |is_so| {
            guard.terms.set(Terms {
                may_be_shared: is_so,
                ..guard.terms.get()
            });
        };
        if self.rng.borrow_mut().bool() {
            may_be_shared(true);
            let answer = timeout(limit, lease.downgrade()).await;
            self.say(|| format!("has downgraded {}: {answer:?}", lease.key()));
            if let Ok(Ok(())) = answer {
                may_be_shared(false);
            }
        } else {
            let before = lease.fence();
            let answer = timeout(limit, lease.upgrade()).await;
            self.say(|| format!("has upgraded {}: {answer:?}", lease.key()));
            if let Ok(Ok(Upgrade::Exclusive)) = answer {
                // No earlier downgrade makes the lease shared any more.
                may_be_shared(false);
                if lease.fence() != before && guard.is_live() {
                    self.ledger.check();
                    self.ledger.fence_rises(guard);
                }
            }
        }
        sleep(self.millis(40)).await;
    }

    async fn gives_up(&self, lease: Lease, terms: Terms) {
        // The lease behind one from memory may live for longer.
        let mut left = self.server.state().lasts(lease.key(), Some(lease.owner())) + 2 * MARGIN;
        // A request that is late may be granted the lease anew, after an eviction.
        if !self.server.course.faults.is_empty() {
            left = left.max(lease.ttl());
        }
        let key = lease.key().clone();
        // A key that is kept for minutes is dull.
        let gives_away = left < Duration::from_secs(25);
        // A renewal may be under way.
        let left = left.max(Duration::from_secs(20)) + CALL_TIMEOUT;
        // Who is told to stop hands its lease on.
        let hands_on = self.leases.is_closed() && self.now_and_then(50);
        match self.below(100) {
            _ if hands_on && gives_away => self.hands_on(lease, left, terms),
            88.. if !gives_away => drop(lease),
            0..=49 => {
                self.say(|| format!("drops {key}"));
                drop(lease);
            }
            50..=79 => {
                self.say(|| format!("releases {key}"));
                let released = self.within(CALL, lease.release()).await;
                self.say(|| format!("has released {key}: {released:?}"));
            }
            80..=87 => {
                self.say(|| format!("releases {key}, and drops the future"));
                let _ = timeout(self.millis(30), lease.release()).await;
            }
            88..=90 => {
                // Other guards under the lease may keep it alive meanwhile. Its ttl may be longer than that of a guard that
                // entered.
                let ttl = if terms.is_reentrant {
                    LONGEST_TTL
                } else {
                    lease.ttl()
                };
                self.ledger.excuse(&key, left + ttl, true);
                self.say(|| format!("detaches {key}"));
                self.ledger.takes_back(self.client, &key);
                let _ = lease.detach();
                self.count("detached");
            }
            _ => self.hands_on(lease, left, terms),
        }
    }

    /// Leaves a ticket of the lease for another task.
    fn hands_on(&self, lease: Lease, left: Duration, terms: Terms) {
        self.say(|| format!("makes a ticket of {}", lease.key()));
        self.ledger.takes_back(self.client, lease.key());
        self.ledger.excuse(lease.key(), left, true);
        let ticket = (lease.into_ticket(), terms);
        self.ledger.tickets.borrow_mut().push(ticket);
        self.ledger.ticket_came.notify_one();
    }

    /// Goes on with a lease that some task has left as a ticket.
    pub async fn resume(&self) {
        let Some((ticket, terms)) = self.ledger.tickets.borrow_mut().pop() else {
            return;
        };
        self.say(|| format!("resumes {}", ticket.key()));
        let resume = self.leases.resume(&ticket).into_future();
        match self.within(CALL, resume).await {
            Ok(Resumed::Live(lease)) => {
                // A lease that a ticket continues does not stay.
                let idle = Duration::ZERO;
                let terms = Terms { idle, ..terms };
                let guard = Guard::new(self.client, lease, terms, Instant::now());
                self.say(|| format!("has resumed {guard}"));
                // It has the fence of the task before it.
                self.ledger.has(&guard, "resumed");
                self.ledger.check();
                self.holds(guard).await;
            }
            Ok(_) => {}
            Err(_) => {
                // A renewal that arrives late keeps the lease, which nobody has.
                let trouble = self.server.state().trouble;
                let left = trouble.saturating_duration_since(Instant::now()) + CALL + LONGEST_TTL;
                self.ledger.excuse(ticket.key(), left, true);
            }
        }
    }
}
