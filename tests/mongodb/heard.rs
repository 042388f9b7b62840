//! Whether a stream makes the waiters of another process ask sooner than they would without it.
//!
//! When a waiter polls at its slowest, two of its requests for a key are at least half a second apart, on any machine.
//! So if a request comes sooner, after an event of the stream, the event is the reason.

use std::{collections::HashMap, time::Duration};

use chrono::Utc;
use futures::{FutureExt, future::join_all};
use leasehold::{Key, Lease, Leases, Store};
use leasehold_tests::{layer::Layered, processes::Process};
use tokio::time::{Instant, sleep, timeout};

use super::{
    ATTEMPTS, Engine, Fixture, LONG, PATIENCE,
    between_processes::place_of,
    listeners::{Event, Listening, ListeningStore},
};

/// How many keys are released.
const KEYS: usize = 12;
/// For how many of them the waiter has to ask sooner than without a stream.
const ENOUGH: usize = 4;
/// Less than the pause between two requests of a waiter that polls at its slowest, which is a second, in milliseconds.
const POLL: i64 = 900;
/// After this many requests without a stream, a waiter polls at its slowest.
const SELDOM: usize = 9;
/// A process that takes this long for a short sleep and a read of the store stands still, or its server does, in
/// milliseconds. The same holds for a process that takes this long to release a key.
const STALL: i64 = 60;

fn name(key: usize) -> String {
    format!("key {key}")
}

fn told(what: &str, key: usize, at: i64) {
    println!("\ntold {what} {key} {at}");
}

fn now() -> i64 {
    Utc::now().timestamp_millis()
}

fn tell(event: Event<'_>) {
    let number = |key: &Key| key.as_str().split_once(' ').unwrap().1.parse().unwrap();
    match event {
        Event::Opened => told("opened", 0, now()),
        Event::Heard(key) => told("heard", number(key), now()),
        Event::Asked(key) => told("asked", number(key), now()),
        Event::Answered(key) => told("answered", number(key), now()),
    }
}

/// The work of the other process: it waits for all keys, and tells what happens.
pub async fn wait(store: impl Store, ears: Listening) {
    let store = ListeningStore::new(store, ears).telling(tell);
    let leases = Leases::new(Layered(store));
    let wait = async |key| {
        let lease = leases.acquire(name(key), LONG).await.unwrap();
        told("granted", key, now());
        lease
    };
    let stalls = async {
        loop {
            let start = Instant::now();
            sleep(Duration::from_millis(10)).await;
            let _ = leases.inspect("a key that nobody holds").await;
            told("looked", 0, start.elapsed().as_millis() as i64);
        }
    };
    // The key beyond the last one is not released, so its waiter keeps the stream open until the end.
    tokio::join!(join_all((0..=KEYS).map(wait)), stalls);
}

/// How one key came to the other process.
#[derive(Debug, Default)]
struct Handover {
    /// When the waiter asked for it last and second to last, and when it heard of it, by the clock of the machine.
    asked: i64,
    before: i64,
    heard: Option<i64>,
    /// How often the waiter has asked since it polls at its slowest.
    requests: usize,
    released: Option<i64>,
    granted: bool,
    /// Whether a read of the store that began before the handover was over took longer than `STALL`.
    stalled: bool,
    over: bool,
}

impl Handover {
    /// Whether the waiter asked because it heard of the key.
    fn is_sooner(&self) -> bool {
        self.heard.is_some() && self.asked - self.before < POLL
    }

    /// Whether one of the two processes, or the server, stood still meanwhile.
    fn is_slow(&self) -> bool {
        let released = self.released.unwrap_or(self.asked);
        self.stalled || released - self.before > 2 * STALL
    }
}

/// The other process, and what it has told.
struct Other {
    process: Process,
    listens: bool,
    opened: bool,
    keys: HashMap<usize, Handover>,
}

impl Other {
    fn take_in(&mut self, (what, key, at): (String, i64, i64)) -> String {
        let handover = self.keys.entry(key as usize).or_default();
        match &*what {
            "opened" => self.opened = true,
            "looked" => self.keys.values_mut().for_each(|key| {
                key.stalled |= !key.over && at > STALL;
            }),
            "heard" => handover.heard = Some(at),
            "granted" => handover.granted = true,
            "asked" => {
                (handover.before, handover.asked) = (handover.asked, at);
                if handover.released.is_none() {
                    handover.stalled = false;
                }
                if self.opened || !self.listens {
                    handover.requests += 1;
                }
            }
            _ => {}
        }
        what
    }

    async fn next(&mut self) -> (String, usize) {
        let told = self.process.next().await;
        let key = told.1 as usize;
        (self.take_in(told), key)
    }

    /// Takes in what the process has told so far, so that what it tells next has just happened.
    fn catch_up(&mut self) {
        while let Some(told) = self.process.next().now_or_never() {
            self.take_in(told);
        }
    }

    /// Releases each key right after a request for it was refused, and returns how each of them was handed over.
    async fn take_over(mut self, mut held: HashMap<usize, Lease>) -> Vec<Handover> {
        // With a stream a waiter polls at its slowest soon: the first pause hears of the start of the stream, and the
        // next one is the longest.
        let seldom = if self.listens { 3 } else { SELDOM };
        while held.len() > 1 {
            self.catch_up();
            let (what, key) = self.next().await;
            if what != "answered" || key == KEYS || self.keys[&key].requests < seldom {
                continue;
            }
            let Some(lease) = held.remove(&key) else {
                continue;
            };
            lease.release().await.unwrap();
            self.keys.get_mut(&key).unwrap().released = Some(now());
            while !self.keys[&key].granted {
                self.next().await;
            }
            // This is the read that was under way meanwhile.
            while self.next().await.0 != "looked" {}
            let handover = self.keys.get_mut(&key).unwrap();
            handover.over = true;
            let explained = !self.listens || handover.is_sooner() || handover.is_slow();
            assert!(explained, "only the stream was slow: {handover:?}");
        }
        // The stream tells of each key. Of some it tells only after their waiter has found them by polling.
        let tells_all = async {
            while self.listens && (0..KEYS).any(|key| self.keys[&key].heard.is_none()) {
                self.next().await;
            }
        };
        let tells_all = timeout(PATIENCE, tells_all).await;
        tells_all.expect("the stream has left out a key");
        self.process.kill().await;
        (0..KEYS).filter_map(|key| self.keys.remove(&key)).collect()
    }
}

/// How the keys came to another process, which has a stream or has none.
async fn handovers(kind: &'static str) -> Vec<Handover> {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let leases = Leases::new(fixture.store().await);
    let hold = async |key| (key, leases.acquire(name(key), LONG).await.unwrap());
    let held = join_all((0..=KEYS).map(hold)).await;
    let mut place = place_of(&fixture);
    place.kind = kind;
    let other = Other {
        process: Process::start(&place, "wait and tell"),
        listens: kind != "deaf",
        opened: false,
        keys: HashMap::new(),
    };
    other.take_over(held.into_iter().collect()).await
}

#[tokio::test]
async fn a_stream_wakes_the_waiters_of_another_process_sooner_than_asking_does() {
    for attempt in 1..=ATTEMPTS {
        let (told, asked) = tokio::join!(handovers("mongodb"), handovers("deaf"));
        for key in &asked {
            let pause = key.asked - key.before;
            assert!(key.heard.is_none() && pause >= POLL, "{key:?}");
        }
        let sooner = told.iter().filter(|key| key.is_sooner()).count();
        println!("of {KEYS} keys {sooner} were asked for because they were heard of");
        if sooner >= ENOUGH {
            return;
        }
        assert!(attempt < ATTEMPTS, "{told:?}");
    }
}
