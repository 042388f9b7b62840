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

/// The shortest term of a leader.
const MOMENT: Duration = Duration::from_millis(1);
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
        let call = limiter.permit().wait_for(limit);
        let answer = if self.now_and_then(20) {
            timeout(self.millis(100), call.into_future()).await.ok()
        } else {
            Some(self.within(limit + CALL, call.into_future()).await)
        };
        self.say(|| match &answer {
            Some(Ok(_)) => "has a permit".to_owned(),
            Some(Err(error)) => format!("has no permit: {error}"),
            None => "wants none any more".to_owned(),
        });
        if let Some(Ok(_)) = answer {
            self.ledger.permitted();
        }
    }

    async fn runs_once(&self) {
        let Ok(key) = Key::new("job") else { return };
        let tick = self.rng.borrow_mut().i64(1..=4);
        let limit = self.millis(1_000);
        let once = self.leases.once(&key, tick).ttl(self.ttl()).wait_for(limit);
        let took = self.millis(60);
        let fails = self.now_and_then(15);
        self.say(|| format!("wants to run tick {tick}"));
        let done = once.run(async |lease: &Lease| {
            self.ledger.runs(&key, tick);
            self.say(|| format!("runs tick {tick}"));
            self.works(lease, took).await;
            if fails { Err("it failed") } else { Ok(()) }
        });
        let done = self.within(limit + CALL * 3, done).await;
        self.say(|| format!("tick {tick}: {done:?}"));
        if let Ok(Once::Ran(())) = done {
            self.ledger.is_done(&key, tick);
        }
        self.ledger.excuse(&key, Duration::from_secs(700), false);
    }

    async fn leads(&self) {
        let Ok(key) = Key::new("leader") else { return };
        let (lead_for, limit) = (self.millis(300) + MOMENT, self.millis(1_000));
        let leader = self.leases.leader(&key, self.ttl());
        self.say(|| "wants to lead".to_owned());
        let led = leader.run(async |term: &Term| -> Result<(), String> {
            self.say(|| format!("leads with fence {}", term.fence()));
            let until = Instant::now() + lead_for;
            let _guard = self.begins(term.key(), term.owner(), term.cancellation_token(), until);
            self.count("led");
            sleep(lead_for).await;
            Ok(())
        });
        let led = timeout(limit, led).await;
        self.say(|| format!("leads no more: {led:?}"));
        self.ledger.excuse(&key, Duration::from_secs(700), false);
    }

    /// Work that the library runs begins under a lease. It counts until the guard is dropped.
    fn begins(
        &self,
        key: &Key,
        owner: &str,
        token: CancellationToken,
        until: Instant,
    ) -> Rc<Guard> {
        let guard = Rc::new(Guard {
            client: self.client,
            key: key.clone(),
            owner: owner.to_owned(),
            lease: None,
            token,
            until,
            terms: Cell::new(Terms::default()),
            asked: Instant::now(),
        });
        self.ledger.granted(&guard, None);
        guard
    }

    /// Works under a lease.
    async fn works(&self, lease: &Lease, took: Duration) {
        let until = lease.deadline().min(Instant::now() + took);
        let (key, owner, token) = (lease.key(), lease.owner(), lease.cancellation_token());
        let _guard = self.begins(key, owner, token, until);
        sleep(took).await;
        self.ledger.check();
    }

    /// Has the library run work under a lease.
    pub async fn with(&self) {
        let (key, ttl) = (self.choose_key(), self.ttl());
        let (took, limit) = (self.millis(60), self.millis(1_000));
        let panics = self.now_and_then(20);
        let is_wrong = self.is_wrong(Judge::Panicked);
        self.say(|| format!("wants {key} for work, ttl {ttl:?}"));
        let acquire = self.leases.acquire(&key, ttl).wait_for(limit);
        let work = acquire.with(async |lease: &Lease| -> Result<(), Error> {
            self.works(lease, took).await;
            if is_wrong {
                panic!("wrong on purpose");
            }
            if panics {
                panic!("{PLANNED}");
            }
            Ok(())
        });
        let waits = self.waits_for(&key);
        let work = async {
            let done = self.within(limit + CALL * 2, work).await;
            self.say(|| format!("has worked: {:?}", done.map_err(|error| error.to_string())));
        };
        if AssertUnwindSafe(work).catch_unwind().await.is_err() {
            self.say(|| "its work has panicked".to_owned());
            self.count("panicked");
        }
        drop(waits);
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
        let keys: Vec<_> = state.records.keys().cloned().collect();
        for key in keys {
            state.evicted.insert(key, Instant::now());
        }
    }
}
