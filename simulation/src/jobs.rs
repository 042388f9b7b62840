//! Work that the library runs under a lease, limiters, and what an operator does.

use std::{cell::Cell, panic::AssertUnwindSafe, rc::Rc, time::Duration};

use futures::FutureExt;
use leasehold::{
    Error, Key, Lease,
    jobs::{Once, Term},
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    guard::{Guard, Terms},
    judge::Judge,
    panics::PLANNED,
    task::{CALL, Task},
};

/// What some calls may take beyond the time that `awaits` adds for all of them.
const REST: Duration = Duration::from_secs(8);
/// The window of each limiter.
const WINDOW: Duration = Duration::from_millis(500);

impl Task {
    /// A limiter, a tick, or a term as the leader.
    pub async fn job(&self) {
        match self.below(10) {
            0..=4 => self.takes_a_permit().await,
            5..=7 => self.runs_once().await,
            _ => self.leads().await,
        }
    }

    async fn takes_a_permit(&self) {
        let mut limiter = self.leases.limiter("calls", 3, WINDOW);
        if self.now_and_then(30) {
            limiter = limiter.smooth(2);
        }
        let limit = self.millis(3_000);
        self.say(|| "wants a permit of the limiter".to_owned());
        let asked = limiter.permit().wait_for(limit).into_future();
        let (answer, _) = self.awaits(asked, self.wait(&[]), Some(limit + REST)).await;
        if let Some(Ok(_)) = answer {
            self.ledger.permitted();
        }
    }

    async fn runs_once(&self) {
        let Ok(key) = Key::new("job") else { return };
        let tick = self.rng.borrow_mut().i64(1..=4);
        let limit = self.millis(1_000);
        let once = self.leases.once(&key, tick).ttl(self.ttl()).wait_for(limit);
        let fails = self.now_and_then(15);
        self.say(|| format!("wants to run tick {tick}"));
        let asked = Instant::now();
        let done = once.run(async |lease: &Lease| {
            self.ledger.runs(&key, tick, asked);
            self.say(|| format!("runs tick {tick}"));
            self.works_under(lease, asked).await;
            if fails { Err("it failed") } else { Ok(()) }
        });
        // Who leaves the future alone may begin a tick whose lease is over, and which another one has done.
        let done = self.within(limit + CALL * 3, done).await;
        self.say(|| format!("tick {tick}: {done:?}"));
        if let Ok(Once::Ran(())) = done {
            self.ledger.is_done(&key, tick);
        }
    }

    async fn leads(&self) {
        let Ok(key) = Key::new("leader") else { return };
        let leader = self.leases.leader(&key, self.ttl());
        self.say(|| "wants to lead".to_owned());
        let asked = Instant::now();
        let led = leader.run(async |term: &Term| -> Result<(), String> {
            self.say(|| format!("leads with fence {}", term.fence()));
            self.count("led");
            let of = (term.key(), term.owner(), Instant::now() + CALL);
            self.works(of, term.cancellation_token(), asked).await;
            Ok(())
        });
        let led = timeout(self.millis(1_000), led).await;
        self.say(|| format!("leads no more: {led:?}"));
    }

    /// Works for a while under a lease that the library has: its key, its owner, and until when it counts at most.
    async fn works(&self, of: (&Key, &str, Instant), token: CancellationToken, asked: Instant) {
        let took = self.millis(if self.now_and_then(10) { 300 } else { 60 });
        let guard = Rc::new(Guard {
            client: self.client,
            key: of.0.clone(),
            owner: of.1.to_owned(),
            lease: None,
            token,
            until: of.2.min(Instant::now() + took),
            terms: Cell::new(Terms::default()),
            asked,
        });
        self.ledger.granted(&guard, None);
        sleep(took).await;
        self.ledger.check();
    }

    async fn works_under(&self, lease: &Lease, asked: Instant) {
        let of = (lease.key(), lease.owner(), lease.deadline());
        self.works(of, lease.cancellation_token(), asked).await;
    }

    /// Has the library run work under a lease.
    pub async fn with(&self) {
        let (key, ttl, limit) = (self.choose_key(), self.ttl(), self.millis(1_000));
        let panics = self.now_and_then(20);
        let is_wrong = self.is_wrong(Judge::Panicked);
        let text = if is_wrong {
            "wrong on purpose"
        } else {
            PLANNED
        };
        self.say(|| format!("wants {key} for work, ttl {ttl:?}"));
        let acquire = self.leases.acquire(&key, ttl).wait_for(limit);
        let asked = Instant::now();
        let work = acquire.with(async |lease: &Lease| -> Result<(), Error> {
            self.works_under(lease, asked).await;
            if panics {
                panic!("{text}");
            }
            Ok(())
        });
        let done = self.awaits(work, self.wait(&[key]), Some(limit + CALL + REST));
        if AssertUnwindSafe(done).catch_unwind().await.is_err() {
            self.say(|| "its work has panicked".to_owned());
            self.count("panicked");
        }
    }

    /// Ends leases from outside.
    pub async fn evict(&self) {
        self.count("evicted");
        let key = self.choose_key();
        if self.rng.borrow_mut().bool() {
            self.say(|| format!("evicts {key}"));
            let _ = self.within(CALL, self.leases.evict(&key)).await;
            return;
        }
        let client = self.rng.borrow_mut().usize(0..self.server.course.clients);
        let owner = self.server.course.owner_of(client);
        self.say(|| format!("releases all leases of {owner}"));
        self.server.state().evictions += 1;
        let released = self.leases.release_owner(&owner);
        let _ = self.within(CALL * 4, released).await;
        let mut state = self.server.state();
        state.evictions -= 1;
        // All leases may have been ended now.
        let (now, keys) = (Instant::now(), state.records.keys().cloned());
        let evicted: Vec<_> = keys.map(|key| (key, now)).collect();
        state.evicted.extend(evicted);
    }
}
