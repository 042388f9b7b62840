//! One of the tasks: it acquires a key in one of many ways, has it for a while, and gives it up in one of many ways.

use std::{
    cell::Cell,
    future::{IntoFuture, poll_fn},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use fastrand::Rng;
use leasehold::{Attempt, Error, Lease, Leases, Resumed, Upgrade};
use tokio::time::{sleep, timeout};

use super::{
    Course, PATIENT,
    ledger::{Guard, Had, Ledger},
};

const STEPS: usize = 30;
const TTLS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(20),
];
const IDLE: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_secs(2),
    Duration::from_secs(20),
];

pub struct Task {
    pub course: Course,
    pub ledger: Rc<Ledger>,
    pub leases: Leases,
    /// The other process.
    pub other: Leases,
    pub rng: Rng,
}

impl Task {
    pub async fn run(mut self) {
        for _ in 0..STEPS {
            self.pause(50).await;
            for had in self.acquire().await {
                self.ledger.granted(&had);
                self.hold(had).await;
            }
            self.ledger.check();
            if self.course.evicts && self.now_and_then(5) {
                self.evict().await;
            }
        }
    }

    /// Ends leases from outside.
    async fn evict(&mut self) {
        self.ledger.count(|tally| tally.evicted += 1);
        let by = if self.rng.bool() {
            &self.leases
        } else {
            &self.other
        };
        if self.rng.bool() {
            let key = *self.rng.choice(self.course.keys).unwrap();
            let _ = by.evict(key).await;
        } else {
            let _ = by.release_owner(self.leases.owner()).await;
        }
    }

    /// Whether something happens that happens so often in a hundred times.
    fn now_and_then(&mut self, percent: u32) -> bool {
        self.rng.u32(0..100) < percent
    }

    fn millis(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.rng.u64(0..=most))
    }

    async fn pause(&mut self, most: u64) {
        sleep(self.millis(most)).await;
    }

    /// Acquires a key, or both. Empty if the task did not get it.
    async fn acquire(&mut self) -> Vec<Rc<Had>> {
        let key = *self.rng.choice(self.course.keys).unwrap();
        let ttl = *self.rng.choice(&TTLS).unwrap();
        let idle = *self.rng.choice(&IDLE).unwrap();
        let stays = self.now_and_then(60);
        if self.now_and_then(15) {
            let mut asked = self.leases.try_acquire(key, ttl);
            if stays {
                asked = asked.sticky(idle);
            }
            let answer = self.waits(asked.into_future()).await;
            return match answer {
                Some(Ok(Attempt::Acquired(lease))) => vec![Had::new(Guard::Lease(lease), false)],
                _ => self.refused(),
            };
        }
        if self.now_and_then(10) {
            let mut asked = self.leases.acquire_all(self.course.keys, ttl);
            if stays {
                asked = asked.sticky(idle);
            }
            let answer = self.waits(asked.into_future()).await;
            return match answer {
                Some(Ok(set)) => {
                    let had = |lease| Had::new(Guard::Lease(lease), false);
                    set.into_leases().into_iter().map(had).collect()
                }
                _ => self.refused(),
            };
        }
        let mut asked = self.leases.acquire(key, ttl);
        if stays {
            asked = asked.sticky(idle);
        }
        if self.now_and_then(30) {
            asked = asked.shared();
        }
        let is_reentrant = self.now_and_then(10);
        if is_reentrant {
            asked = asked.reentrant();
        }
        if self.now_and_then(5) {
            asked = asked.note("a note");
        }
        if self.now_and_then(3) {
            asked = asked.min_hold(Duration::from_millis(200));
        }
        if self.now_and_then(5) {
            asked = asked.max_hold(2 * ttl);
        }
        if self.now_and_then(10) {
            asked = asked.barging();
        }
        if self.now_and_then(30) {
            asked = asked.keep_alive();
        }
        if self.now_and_then(30) {
            asked = asked.wait_for(self.millis(500));
        }
        if !is_reentrant && self.now_and_then(20) {
            let asked = asked.sticky_shared(idle);
            let answer = self.waits(asked.into_future()).await;
            return match answer {
                Some(Ok(lease)) => vec![Had::new(Guard::Shared(lease), false)],
                _ => self.refused(),
            };
        }
        match self.waits(asked.into_future()).await {
            Some(Ok(lease)) => vec![Had::new(Guard::Lease(lease), is_reentrant)],
            _ => self.refused(),
        }
    }

    fn refused(&self) -> Vec<Rc<Had>> {
        self.ledger.count(|tally| tally.refused += 1);
        Vec::new()
    }

    /// Waits for an acquire, unless it drops the future, and perhaps does not poll it for a while. `None` if the
    /// future was dropped.
    async fn waits<T>(
        &mut self,
        asked: impl Future<Output = Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        let mut asked = pin!(asked);
        if self.now_and_then(15) {
            let limit = self.millis(300);
            let answer = timeout(limit, asked).await.ok();
            if answer.is_none() {
                self.ledger.count(|tally| tally.dropped += 1);
            }
            return answer;
        }
        if self.now_and_then(10) {
            for _ in 0..2 {
                let polled = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context))).await;
                if let Poll::Ready(answer) = polled {
                    return Some(answer);
                }
                self.pause(1_500).await;
            }
        }
        let answer = timeout(PATIENT, asked).await;
        Some(answer.expect("a task waits for ever"))
    }

    /// Has a lease for a while, and gives it up.
    async fn hold(&mut self, had: Rc<Had>) {
        let most = if self.now_and_then(10) { 3_000 } else { 40 };
        self.pause(most).await;
        if self.now_and_then(10) {
            let ledger = self.ledger.clone();
            self.enter(&had).await;
            ledger.check();
        }
        if self.now_and_then(10) {
            let limit = self.millis(60);
            let renewed = async {
                match &had.guard {
                    Guard::Lease(lease) => lease.renew().await,
                    Guard::Shared(lease) => lease.renew().await,
                }
            };
            let _ = timeout(limit, renewed).await;
        }
        if self.now_and_then(10) {
            self.convert(&had).await;
        }
        self.ledger.check();
        let Some(had) = Rc::into_inner(had) else {
            panic!("only the task has its lease");
        };
        let lease = match had.guard {
            Guard::Lease(lease) => lease,
            Guard::Shared(lease) => {
                let _ = lease.release().await;
                return;
            }
        };
        self.give_up(lease, had.is_reentrant, had.may_be_shared)
            .await;
    }

    /// Enters a lease once more.
    async fn enter(&mut self, had: &Had) {
        let Guard::Lease(outer) = &had.guard else {
            return;
        };
        let ttl = *self.rng.choice(&TTLS).unwrap();
        let asked = self.leases.acquire(outer.key(), ttl).reentrant();
        let asked = asked.wait_for(self.millis(500));
        let asked = if self.now_and_then(30) {
            asked.shared()
        } else {
            asked
        };
        if let Some(Ok(inner)) = self.waits(asked.into_future()).await {
            let inner = Had::new(Guard::Lease(inner), true);
            self.ledger.granted(&inner);
            self.pause(40).await;
            let Some(Had { guard, .. }) = Rc::into_inner(inner) else {
                panic!("only the task has its lease");
            };
            if let Guard::Lease(lease) = guard {
                let _ = lease.release().await;
            }
        }
    }

    async fn convert(&mut self, had: &Had) {
        let Guard::Lease(lease) = &had.guard else {
            return;
        };
        let limit = if self.now_and_then(30) {
            self.millis(60)
        } else {
            PATIENT
        };
        self.ledger.count(|tally| tally.converted += 1);
        if self.now_and_then(50) {
            had.may_be_shared.set(true);
            let answer = timeout(limit, lease.downgrade()).await;
            if let Ok(Ok(())) = answer {
                had.may_be_shared.set(false);
            }
        } else {
            let before = lease.fence();
            let answer = timeout(limit, lease.upgrade()).await;
            if let Ok(Ok(Upgrade::Exclusive)) = answer {
                // No earlier downgrade makes the lease shared any more.
                had.may_be_shared.set(false);
                if lease.fence() != before {
                    self.ledger.upgraded(had);
                }
            }
        }
        self.pause(40).await;
    }

    async fn give_up(&mut self, lease: Lease, is_reentrant: bool, may_be_shared: Cell<bool>) {
        match self.rng.u32(0..100) {
            0..=49 => drop(lease),
            50..=79 => drop(lease.release().await),
            80..=89 => drop(timeout(self.millis(30), lease.release()).await),
            90..=93 => drop(lease.detach()),
            94..=97 => {
                let ticket = lease.into_ticket();
                if let Ok(Resumed::Live(lease)) = self.other.resume(&ticket).await {
                    let had = Had::new(Guard::Lease(lease), is_reentrant);
                    had.may_be_shared.swap(&may_be_shared);
                    self.ledger.resumed(&had);
                    self.pause(40).await;
                }
            }
            // It has the key until its ttl is over.
            _ => {
                let until = lease.deadline();
                tokio::time::sleep_until(until + Duration::from_millis(100)).await;
                if self.now_and_then(50) {
                    let _ = lease.release().await;
                }
            }
        }
    }
}
