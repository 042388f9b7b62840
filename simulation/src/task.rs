//! A task of a client: what it does at each step, and how it waits.

mod waiting;

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use fastrand::Rng;
use leasehold::{Attempt, Key, Lease, Leases};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    control::Control,
    course::Course,
    guard::{Guard, Held},
    ledger::{Ledger, Wait},
    server::Server,
    trace::Who,
    world::Pool,
};

const TTLS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(20),
    LONGEST_TTL,
];
/// The longest ttl of a lease.
pub const LONGEST_TTL: Duration = Duration::from_secs(600);
const IDLE: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_secs(2),
    Duration::from_secs(20),
];
/// Longer than all tasks together can have a key, each until its ttl is over.
const FOR_EVER: Duration = Duration::from_secs(30_000);
/// Longer than a call with its repeats takes, whatever happens to each of them.
pub const CALL: Duration = Duration::from_secs(20);

/// A task of a client.
pub struct Task {
    pub course: Course,
    pub server: Arc<Server>,
    pub ledger: Rc<Ledger>,
    pub leases: Leases,
    /// The tickets that tasks leave for each other.
    pub pool: Rc<Pool>,
    pub client: usize,
    pub number: usize,
    pub rng: RefCell<Rng>,
}

/// What an acquire asks for.
pub struct Asked {
    pub key: &'static str,
    pub ttl: Duration,
    /// For how long the lease stays; zero if it does not.
    pub idle: Duration,
    pub wait_for: Option<Duration>,
    pub is_shared: bool,
    pub is_reentrant: bool,
    pub is_barging: bool,
}

impl Task {
    /// Does all that the task does.
    pub async fn run(self) {
        for step in 0..self.course.steps {
            let (client, number) = (self.client, self.number);
            if self.course.skipped.contains(&(client, number, step)) {
                continue;
            }
            *self.rng.borrow_mut() = self.course.rng(client, number + 1, step + 1);
            let rests = self.now_and_then(self.course.rests);
            let pause = self.millis(if rests { 4_000 } else { 50 });
            // A ticket may be sent to a task that does nothing else.
            let is_sent = timeout(pause, self.pool.arrived.notified()).await.is_ok();
            let is_over = self.server.state().violation.is_some();
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
        if self.course.jobs && self.now_and_then(25) {
            return self.job().await;
        }
        if self.course.evicts && self.now_and_then(5) {
            return self.evict().await;
        }
        if self.now_and_then(50) && !self.pool.tickets.borrow().is_empty() {
            return self.resume().await;
        }
        match self.below(100) {
            0..=14 => self.try_once().await,
            15..=21 => self.set().await,
            22..=27 => self.permits().await,
            28..=33 => self.with().await,
            _ => self.acquire().await,
        }
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        self.server.say(Who::Task(self.client, self.number), what);
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

    pub async fn pause(&self, most: u64) {
        sleep(self.millis(most)).await;
    }

    pub fn is_wrong(&self, control: Control) -> bool {
        self.server.control == Some(control)
    }

    fn choose<T: Copy>(&self, from: &[T], otherwise: T) -> T {
        let chosen = self.rng.borrow_mut().choice(from).copied();
        chosen.unwrap_or(otherwise)
    }

    pub fn choose_key(&self) -> &'static str {
        self.choose(self.course.key_names(), "one")
    }

    pub fn ttl(&self) -> Duration {
        let first = if self.course.is_contended { 2 } else { 0 };
        self.choose(&TTLS[first..], TTLS[0])
    }

    /// For how long the next lease stays.
    fn idle(&self) -> Duration {
        let stays = self.now_and_then(self.course.sticky);
        let idle = self.choose(&IDLE, Duration::ZERO);
        if stays { idle } else { Duration::ZERO }
    }

    async fn acquire(&self) {
        let mut asked = self.asks(self.choose_key());
        // Who has dropped its future may want the key with other terms at once.
        while self.acquire_as(&asked).await && self.now_and_then(50) {
            asked = self.asks(asked.key);
        }
    }

    fn asks(&self, key: &'static str) -> Asked {
        Asked {
            key,
            ttl: self.ttl(),
            idle: self.idle(),
            wait_for: self.now_and_then(25).then(|| self.millis(500)),
            is_shared: self.now_and_then(self.course.shared),
            is_reentrant: self.now_and_then(8),
            is_barging: self.now_and_then(5),
        }
    }

    /// Returns whether it has dropped the future.
    async fn acquire_as(&self, asked: &Asked) -> bool {
        if self.is_wrong(Control::NeverPauses) {
            for _ in 0..3_000 {
                let _ = self.leases.inspect(asked.key).await;
            }
        }
        let mut acquire = self.leases.acquire(asked.key, asked.ttl);
        let goes_to_the_front = self.is_wrong(Control::GoesToTheFront) && self.now_and_then(30);
        if let Some(limit) = asked.wait_for {
            acquire = acquire.wait_for(limit);
        }
        if self.now_and_then(30) {
            acquire = acquire.keep_alive();
        }
        if asked.is_barging || goes_to_the_front {
            acquire = acquire.barging();
        }
        // Who waits for no time takes no turn.
        let is_at_once = asked.wait_for == Some(Duration::ZERO);
        let wait = Wait {
            is_in_turn: !(asked.is_barging || asked.is_reentrant || is_at_once),
            is_shared: asked.is_shared,
            ..self.wait(&[asked.key])
        };
        if !asked.idle.is_zero() {
            acquire = acquire.sticky(asked.idle);
        }
        if asked.is_shared {
            acquire = acquire.shared();
        }
        if asked.is_reentrant {
            acquire = acquire.reentrant();
        }
        if self.now_and_then(8) {
            acquire = acquire.note("a note");
        }
        if self.now_and_then(3) {
            let least = Duration::from_millis(200);
            acquire = acquire.min_hold(least);
            self.excuse(asked.key, least + CALL, true);
        }
        if self.now_and_then(4) {
            acquire = acquire.max_hold(2 * asked.ttl);
        }
        self.say(|| {
            let Asked { key, ttl, idle, wait_for, is_shared, is_reentrant, is_barging } = asked;
            format!("wants {key}, ttl {ttl:?}, idle {idle:?}, wait {wait_for:?}, shared {is_shared}, reentrant {is_reentrant}, barging {is_barging}")
        });
        let (answer, wait) = self
            .awaits(acquire.into_future(), wait, asked.wait_for)
            .await;
        self.may_stay(asked.key, asked.idle);
        let is_dropped = answer.is_none();
        if let Some(Ok(lease)) = answer {
            self.has(lease, Some(wait), asked.is_reentrant, asked.idle)
                .await;
        }
        is_dropped
    }

    async fn try_once(&self) {
        let (key, ttl, idle) = (self.choose_key(), self.ttl(), self.idle());
        let mut attempt = self.leases.try_acquire(key, ttl);
        if !idle.is_zero() {
            attempt = attempt.sticky(idle);
        }
        self.say(|| format!("tries {key}, ttl {ttl:?}, idle {idle:?}"));
        let tries = self.within(CALL, attempt.into_future());
        let waits = self.waits_for(key);
        let answer = self.drops(tries).await;
        drop(waits);
        self.may_stay(key, idle);
        match answer {
            Some(Ok(Attempt::Acquired(lease))) => {
                self.has(lease, None, false, idle).await;
            }
            _ => self.ledger.count("refused"),
        }
    }

    async fn set(&self) {
        let (ttl, idle) = (self.ttl(), self.idle());
        let mut all = self.leases.acquire_all(self.course.key_names(), ttl);
        if !idle.is_zero() {
            all = all.sticky(idle);
        }
        let wait = self.wait(self.course.key_names());
        self.say(|| format!("wants all keys, ttl {ttl:?}, idle {idle:?}"));
        let (answer, wait) = self.awaits(all.into_future(), wait, None).await;
        for key in self.course.key_names() {
            self.may_stay(key, idle);
        }
        if let Some(Ok(set)) = answer {
            self.ledger.count("set");
            let mut guards = Vec::new();
            for lease in set.into_leases() {
                guards.push(self.guard(lease, false, idle, wait.began));
            }
            for guard in &guards {
                self.ledger.granted(guard, None);
            }
            for guard in guards {
                self.holds(guard).await;
            }
        }
    }

    async fn permits(&self) {
        let (key, ttl) = (self.choose_key(), self.ttl());
        let n = self.rng.borrow_mut().u32(1..=2);
        let limit = self.millis(2_000);
        let acquire = self.leases.acquire(key, ttl).permits(n, 3).wait_for(limit);
        let wait = Wait {
            is_shared: true,
            ..self.wait(&[key])
        };
        self.say(|| format!("wants {n} permits of {key}, ttl {ttl:?}"));
        let (answer, wait) = self.awaits(acquire.into_future(), wait, Some(limit)).await;
        if let Some(Ok(lease)) = answer {
            self.has(lease, Some(wait), false, Duration::ZERO).await;
        }
    }

    /// The task got a lease.
    async fn has(&self, lease: Lease, wait: Option<Wait>, is_reentrant: bool, idle: Duration) {
        let asked = wait.as_ref().map_or_else(Instant::now, |it| it.began);
        let guard = self.guard(lease, is_reentrant, idle, asked);
        self.say(|| format!("has {}", guard.describe()));
        self.ledger.granted(&guard, wait.as_ref());
        self.holds(guard).await;
    }

    /// A guard of a lease that the task asked for at this time.
    pub fn guard(
        &self,
        lease: Lease,
        is_reentrant: bool,
        idle: Duration,
        asked: Instant,
    ) -> Rc<Guard> {
        Guard::new(self.client, Held::Lease(lease), is_reentrant, idle, asked)
    }

    /// The key may stay with the client now, although no task got it.
    pub fn may_stay(&self, key: &str, idle: Duration) {
        if !idle.is_zero() {
            self.excuse(key, idle + CALL, false);
        }
    }

    /// A document may keep a lease of the key without a guard.
    pub fn excuse(&self, key: &str, lasts: Duration, binds_others: bool) {
        if let Ok(key) = Key::new(key) {
            self.ledger.excuse(&key, lasts, binds_others);
        }
    }
}

/// The keys of these names.
pub fn keys(names: &[&str]) -> Vec<Key> {
    let keys = names.iter().filter_map(|name| Key::new(name).ok());
    keys.collect()
}
