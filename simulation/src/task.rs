//! A task of a client: what it does at each step, and how it waits.

mod waiting;

use std::{cell::RefCell, rc::Rc, slice, sync::Arc, time::Duration};

use fastrand::Rng;
use leasehold::{Attempt, Error, Key, Lease, Leases};
use tokio::time::timeout;

pub use self::waiting::OnDrop;
use crate::{
    course::choose,
    guard::{Guard, Terms},
    judge::Judge,
    ledger::{Ledger, Wait},
    server::Server,
};

/// The longest ttl of a lease.
pub const LONGEST_TTL: Duration = Duration::from_secs(600);
/// Longer than a call with its repeats takes, whatever happens to each of them.
pub const CALL: Duration = Duration::from_secs(20);
/// The ttls of leases, in seconds.
const TTLS: [u64; 4] = [1, 4, 20, 600];
/// For how long leases stay, in milliseconds.
const IDLE: [u64; 3] = [200, 2_000, 20_000];

/// A task of a client.
pub struct Task {
    pub ledger: Rc<Ledger>,
    pub server: Arc<Server>,
    pub leases: Leases,
    pub client: usize,
    pub number: usize,
    pub rng: RefCell<Rng>,
}

impl Task {
    /// Does all that the task does.
    pub async fn run(self) {
        let (client, number, course) = (self.client, self.number, &self.server.course);
        for &(_, _, step) in course
            .steps
            .range((client, number, 0)..(client, number + 1, 0))
        {
            *self.rng.borrow_mut() = course.rng(client, number + 1, step + 1);
            let rests = self.now_and_then(course.rests);
            let pause = if course.is_crowded { 20 } else { 50 };
            let pause = self.millis(if rests { 4_000 } else { pause });
            // A ticket may be sent to a task that does nothing else.
            let came = self.ledger.ticket_came.notified();
            let is_sent = timeout(pause, came).await.is_ok();
            let is_over = self.server.state().outcome.violation.is_some();
            if is_over || self.leases.is_closed() {
                return;
            }
            if is_sent {
                self.resume().await;
            } else {
                self.step().await;
            }
            self.ledger.check();
        }
    }

    async fn step(&self) {
        if self.is_wrong(Judge::Flood) {
            for _ in 0..3_000 {
                let _ = self.leases.inspect("one").await;
            }
        }
        let course = &self.server.course;
        if course.jobs && self.now_and_then(25) {
            return self.job().await;
        }
        if course.evicts && self.now_and_then(5) {
            return self.evict().await;
        }
        if self.now_and_then(50) && !self.ledger.tickets.borrow().is_empty() {
            return self.resume().await;
        }
        match self.below(100) {
            0..=14 => self.try_once().await,
            15..=21 => self.set().await,
            22..=27 => self.permits().await,
            28..=33 => self.with().await,
            _ => {
                let key = self.choose_key();
                // Who has dropped its future may want the key with other terms at once.
                while self.acquire(&key, false).await && self.now_and_then(50) {}
            }
        }
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        let (client, number) = (self.client, self.number);
        let mut state = self.server.state();
        state.say(format_args!("client {client} task {number}"), what);
    }

    pub fn count(&self, what: &str) {
        self.server.state().count(what);
    }

    /// A random number below this one.
    pub fn below(&self, most: u32) -> u32 {
        self.rng.borrow_mut().u32(0..most)
    }

    /// Whether something happens that happens so often in a hundred times.
    pub fn now_and_then(&self, percent: u32) -> bool {
        self.below(100) < percent
    }

    pub fn millis(&self, most: u64) -> Duration {
        Duration::from_millis(self.rng.borrow_mut().u64(0..=most))
    }

    pub fn is_wrong(&self, judge: Judge) -> bool {
        self.server.state().is_wrong(judge)
    }

    pub fn choose_key(&self) -> Key {
        choose(&mut self.rng.borrow_mut(), &self.server.course.keys)
    }

    pub fn ttl(&self) -> Duration {
        let first = 2 * usize::from(self.server.course.is_contended);
        Duration::from_secs(choose(&mut self.rng.borrow_mut(), &TTLS[first..]))
    }

    /// For how long the next lease stays.
    fn idle(&self) -> Duration {
        let stays = self.now_and_then(self.server.course.sticky);
        let idle = choose(&mut self.rng.borrow_mut(), &IDLE);
        Duration::from_millis(if stays { idle } else { 0 })
    }

    /// Asks for a key in some way, perhaps to enter once more what the task has, which may be in vain. Returns whether it
    /// has dropped the future.
    pub async fn acquire(&self, key: &Key, enters: bool) -> bool {
        let (ttl, idle) = (self.ttl(), self.idle());
        let is_reentrant = enters || self.now_and_then(8);
        let gives_up = !self.server.course.is_crowded && self.now_and_then(25);
        let limit = (enters || gives_up).then(|| self.millis(500));
        let is_shared = self.now_and_then(self.server.course.shared);
        let is_barging = self.now_and_then(5);
        let goes_to_the_front = self.is_wrong(Judge::QueueOfProcess) && self.now_and_then(30);
        let mut acquire = self.leases.acquire(key, ttl).sticky(idle);
        if let Some(limit) = limit {
            acquire = acquire.wait_for(limit);
        }
        if self.now_and_then(30) {
            acquire = acquire.keep_alive();
        }
        if self.now_and_then(8) {
            acquire = acquire.note("a note");
        }
        if is_barging || goes_to_the_front {
            acquire = acquire.barging();
        }
        if is_shared {
            acquire = acquire.shared();
        }
        if is_reentrant {
            acquire = acquire.reentrant();
        }
        if self.now_and_then(3) {
            let least = Duration::from_millis(200);
            acquire = acquire.min_hold(least);
            self.ledger.excuse(key, least + CALL, true);
        }
        if self.now_and_then(4) {
            acquire = acquire.max_hold(2 * ttl);
        }
        let mut wait = self.wait(slice::from_ref(key));
        // Who waits for no time takes no turn.
        wait.is_in_turn = !(is_barging || is_reentrant || limit == Some(Duration::ZERO));
        (wait.is_shared, wait.idle) = (is_shared, idle);
        self.say(|| {
            let how = (is_shared, is_reentrant, is_barging);
            let how = format!("shared, reentrant, barging: {how:?}");
            format!("wants {key}, ttl {ttl:?}, idle {idle:?}, wait {limit:?}, {how}")
        });
        let asked = async { Ok(vec![acquire.await?]) };
        self.gets(asked, wait, limit, is_reentrant).await
    }

    async fn try_once(&self) {
        let (key, ttl, idle) = (self.choose_key(), self.ttl(), self.idle());
        let attempt = self.leases.try_acquire(&key, ttl).sticky(idle);
        self.say(|| format!("tries {key}, ttl {ttl:?}, idle {idle:?}"));
        let asked = async {
            if let Attempt::Acquired(lease) = attempt.await? {
                return Ok(vec![lease]);
            }
            self.count("refused");
            Ok(Vec::new())
        };
        let at_once = Some(Duration::ZERO);
        let mut wait = self.wait(&[key]);
        wait.idle = idle;
        self.gets(asked, wait, at_once, false).await;
    }

    async fn set(&self) {
        let (ttl, idle) = (self.ttl(), self.idle());
        let keys = &self.server.course.keys;
        let all = self.leases.acquire_all(keys, ttl).sticky(idle);
        self.say(|| format!("wants all keys, ttl {ttl:?}, idle {idle:?}"));
        let asked = async {
            let set = all.await?;
            self.count("set");
            Ok(set.into_leases())
        };
        let mut wait = self.wait(keys);
        wait.idle = idle;
        self.gets(asked, wait, None, false).await;
    }

    async fn permits(&self) {
        let (key, ttl) = (self.choose_key(), self.ttl());
        let n = self.rng.borrow_mut().u32(1..=2);
        let limit = self.millis(2_000);
        let acquire = self.leases.acquire(&key, ttl).permits(n, 3).wait_for(limit);
        self.say(|| format!("wants {n} permits of {key}, ttl {ttl:?}"));
        let asked = async { Ok(vec![acquire.await?]) };
        self.gets(asked, self.wait(&[key]), Some(limit), false)
            .await;
    }

    /// Waits for leases, and has them for a while. Returns whether it has dropped the future.
    async fn gets(
        &self,
        asked: impl Future<Output = Result<Vec<Lease>, Error>>,
        wait: Wait,
        limit: Option<Duration>,
        is_reentrant: bool,
    ) -> bool {
        let (answer, wait) = self.awaits(asked, wait, limit).await;
        for key in &wait.keys {
            self.may_stay(key, wait.idle);
        }
        let is_dropped = answer.is_none();
        if let Some(Ok(leases)) = answer {
            self.has(leases, &wait, is_reentrant).await;
        }
        is_dropped
    }

    /// Has some leases, each for a while.
    async fn has(&self, leases: Vec<Lease>, wait: &Wait, is_reentrant: bool) {
        let terms = Terms {
            is_reentrant,
            idle: wait.idle,
            may_be_shared: false,
        };
        let guard = |lease| Guard::new(self.client, lease, terms, wait.began);
        let guards: Vec<_> = leases.into_iter().map(guard).collect();
        for guard in &guards {
            self.say(|| format!("has {guard}"));
            self.ledger.granted(guard, Some(wait));
        }
        for guard in guards {
            self.holds(guard).await;
        }
    }

    /// The key may stay with the client now, although no task got it.
    pub fn may_stay(&self, key: &Key, idle: Duration) {
        if !idle.is_zero() {
            self.ledger.excuse(key, idle + CALL, false);
        }
    }
}
