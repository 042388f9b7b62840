//! Waiters hear of the release of a key by a change stream, on the complete server. Without a stream they get the key
//! too.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::future::join_all;
use leasehold::{
    Acquire, Error, Leases, MongoStore, Store,
    store::{AcquireAnswer, AcquireRequest, FreedKeys},
};
use leasehold_tests::{
    layer::{Layer, Layered},
    proxy::Proxy,
};
use mongodb::bson::Document;
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    Commands, Engine, Fixture, LONG, PATIENCE,
    listeners::{Listening, ListeningStore},
};

/// How long a stream may be silent before it is opened again.
const SILENCE: Duration = Duration::from_secs(30);

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Lets a task wait through this store for a key that another client holds until `meanwhile` is over. Checks that the
/// task gets it then.
async fn waits_while(fixture: &Fixture, store: impl Store, meanwhile: impl AsyncFnOnce()) {
    let holder = Leases::new(fixture.store().await);
    let held = holder.acquire("key", LONG).await.unwrap();
    let waiter = Leases::new(store);
    let release = async {
        meanwhile().await;
        held.release().await.unwrap();
    };
    let wait = timeout(PATIENCE, waiter.acquire("key", LONG));
    let (lease, ()) = tokio::join!(wait, release);
    lease.unwrap().unwrap().release().await.unwrap();
}

/// The commands for streams since the last look: how many streams were opened, and how often one was asked.
#[derive(Default)]
struct Streams {
    opened: usize,
    asked: usize,
}

impl Streams {
    fn look(&mut self, commands: &Commands) {
        for command in commands.take() {
            let opens = |stages: &Vec<_>| format!("{:?}", stages[0]).contains("$changeStream");
            if command.get_array("pipeline").is_ok_and(opens) {
                self.opened += 1;
            }
            if command.contains_key("getMore") {
                self.asked += 1;
            }
        }
    }
}

#[tokio::test]
async fn however_many_wait_one_stream_is_opened() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let holder = Leases::new(fixture.store().await);
    let (collection, commands) = fixture.watched().await;
    let waiter = Leases::new(MongoStore::new(&collection));
    let keys = || (0..10).map(|key| format!("key {key}"));
    let hold = async |key| holder.acquire(key, LONG).await.unwrap();
    let held = join_all(keys().map(hold)).await;

    let mut streams = Streams::default();
    let one = waiter.acquire("another", LONG).await.unwrap();
    streams.look(&commands);
    assert_eq!(streams.opened, 0, "nobody waits");
    let wait = async |key: String| {
        let lease = waiter.acquire(key, LONG).await.unwrap();
        lease.release().await.unwrap();
    };
    // Two tasks wait for each key.
    let waits = join_all(keys().chain(keys()).map(wait));
    let release = async {
        until("no stream is asked", || {
            streams.look(&commands);
            streams.asked >= 2
        })
        .await;
        for lease in held {
            lease.release().await.unwrap();
        }
    };
    let (waited, ()) = tokio::join!(timeout(PATIENCE, waits), release);
    waited.unwrap();
    one.release().await.unwrap();
    streams.look(&commands);
    assert_eq!(streams.opened, 1);
}

#[tokio::test]
async fn a_stream_goes_on_after_its_connection_was_cut() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let proxy = Proxy::to(fixture.options().await.hosts[0].to_string()).await;
    let proxied = Fixture {
        uri: format!("mongodb://{}/?directConnection=true", proxy.address),
        name: fixture.name.clone(),
    };
    let (collection, commands) = proxied.watched().await;
    let store = MongoStore::new::<Document>(&collection);
    waits_while(&fixture, store, async || {
        let mut streams = Streams::default();
        until("no stream is opened", || {
            streams.look(&commands);
            streams.asked >= 1
        })
        .await;
        proxy.lose_the_answer_to("getMore");
        until("no connection is cut", || proxy.cuts() == 1).await;
        let mut streams = Streams::default();
        until("the stream does not go on", || {
            streams.look(&commands);
            streams.opened == 1 && streams.asked >= 2
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_broke_off_is_opened_again() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let store = ListeningStore::new(fixture.store().await, Listening::BreaksOnce);
    let ears = store.clone();
    waits_while(&fixture, Layered(store), async || {
        until("it stays closed", || ears.opened() == 2).await;
    })
    .await;
}

/// Waiters keep polling from time to time beside a stream.
#[tokio::test]
async fn without_a_word_from_the_stream_a_waiter_gets_the_key() {
    let wait = async |kind| {
        let fixture = Fixture::new(Engine::MongoDbReplicaSet);
        let store = ListeningStore::new(fixture.store().await, kind);
        let ears = store.clone();
        let start = Instant::now();
        waits_while(&fixture, Layered(store), async || {
            until("no stream is asked for", || ears.opened() > 0).await;
            // After this time the pauses between two polls are the longest.
            sleep(Duration::from_secs(2)).await;
        })
        .await;
        // A stream that was silent for that long is opened again. If there was none, the store is asked for one again.
        let silences = start.elapsed().as_secs() / SILENCE.as_secs();
        let opened = ears.opened() as u64;
        assert!((1..=1 + silences).contains(&opened), "{kind:?}: {opened}");
    };
    join_all([Listening::Silent, Listening::Deaf].map(wait)).await;
}

/// The instants at which a process sent requests.
#[derive(Clone, Debug)]
struct Requests {
    store: Arc<dyn Store>,
    sent: Arc<Mutex<Vec<Instant>>>,
}

#[async_trait]
impl Layer for Requests {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.sent.lock().push(Instant::now());
        self.store.acquire(request).await
    }
}

#[tokio::test]
async fn a_release_wakes_one_process_of_those_that_wait() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    a_release_wakes_one(&fixture, |acquire| acquire).await;
}

/// All that wait for permits are next to each other.
#[tokio::test]
async fn a_release_of_permits_wakes_one_process_of_those_that_wait() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let beside = Leases::new(fixture.store().await);
    let one = beside.acquire("key", LONG).permits(1, 2).await.unwrap();
    a_release_wakes_one(&fixture, |acquire| acquire.permits(1, 2)).await;
    one.release().await.unwrap();
}

/// A release wakes the process that comes next, and not the others that wait. The others send requests after their
/// pauses only.
async fn a_release_wakes_one(fixture: &Fixture, kind: fn(Acquire) -> Acquire) {
    const PROCESSES: usize = 6;
    /// When a key has been held for this long, the pauses of those that wait for it are long.
    const HOLD: Duration = Duration::from_secs(3);
    /// No process pauses for a shorter time then.
    const PAUSE: Duration = Duration::from_millis(400);

    let holder = Leases::new(fixture.store().await);
    let mut lease = kind(holder.acquire("key", LONG)).await.unwrap();
    let mut logs = Vec::new();
    // Which process was granted the key. The handle comes too, because its drop would release the lease.
    let (granted, mut next) = mpsc::unbounded_channel();
    for number in 0..PROCESSES {
        let requests = Requests {
            store: Arc::new(fixture.store().await),
            sent: Arc::default(),
        };
        logs.push(Some(requests.sent.clone()));
        let (leases, granted) = (Leases::new(Layered(requests)), granted.clone());
        tokio::spawn(async move {
            let lease = kind(leases.acquire("key", LONG)).await.unwrap();
            granted.send((number, lease, leases)).unwrap();
        });
        let start = Instant::now();
        let waiting = async || holder.inspect("key").await.unwrap().unwrap().waiters.len();
        while waiting().await <= number {
            assert!(
                start.elapsed() < PATIENCE,
                "the process {number} has no place"
            );
            sleep(Duration::from_millis(10)).await;
        }
    }
    // How many requests the others sent between a release and the next grant, and how many that may be.
    let (mut requests, mut bound) = (0, 0.0);
    let mut handles = Vec::new();
    for waiting in (0..PROCESSES).rev() {
        sleep(HOLD).await;
        let released = Instant::now();
        lease.release().await.unwrap();
        let (number, granted, leases) = timeout(PATIENCE, next.recv()).await.unwrap().unwrap();
        let time = released..=Instant::now();
        logs[number] = None;
        let sent = logs.iter().flatten().flat_map(|sent| sent.lock().clone());
        requests += sent.filter(|at| time.contains(at)).count();
        let of_pauses = released.elapsed().as_secs_f64() / PAUSE.as_secs_f64();
        bound += waiting as f64 * (0.5 + of_pauses);
        handles.push(leases);
        lease = granted;
    }
    lease.release().await.unwrap();
    assert!(
        (requests as f64) < bound,
        "{requests} requests, and {bound} may be sent"
    );
}

/// What a process was told, and what it asked for.
#[derive(Clone, Debug)]
struct Process {
    store: Arc<dyn Store>,
    /// The fewest processes that a refusal said to be ahead.
    ahead: Arc<AtomicUsize>,
    refusals: Arc<AtomicUsize>,
    streams: Arc<AtomicUsize>,
}

impl Process {
    fn streams(&self) -> usize {
        self.streams.load(SeqCst)
    }

    fn refusals(&self) -> usize {
        self.refusals.load(SeqCst)
    }
}

#[async_trait]
impl Layer for Process {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let answer = self.store.acquire(request).await;
        if let Ok(AcquireAnswer::Held(held)) = &answer {
            self.ahead.fetch_min(held.ahead(), SeqCst);
            self.refusals.fetch_add(1, SeqCst);
        }
        answer
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.streams.fetch_add(1, SeqCst);
        self.store.freed().await
    }
}

/// Each stream costs the server work for each change of a key.
#[tokio::test]
async fn of_many_processes_those_that_come_next_open_a_stream() {
    const PROCESSES: usize = 14;
    const NEAR: usize = 10;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let holder = Leases::new(fixture.store().await);
    let lease = holder.acquire("key", LONG).await.unwrap();
    let (mut processes, mut waits) = (Vec::new(), JoinSet::new());
    for number in 0..PROCESSES {
        let process = Process {
            store: Arc::new(fixture.store().await),
            ahead: Arc::new(usize::MAX.into()),
            refusals: Arc::default(),
            streams: Arc::default(),
        };
        processes.push(process.clone());
        waits.spawn(
            Leases::new(Layered(process))
                .acquire("key", LONG)
                .into_future(),
        );
        let start = Instant::now();
        while holder.inspect("key").await.unwrap().unwrap().waiters.len() <= number {
            assert!(
                start.elapsed() < PATIENCE,
                "the process {number} has no place"
            );
            sleep(Duration::from_millis(10)).await;
        }
    }
    // By then the key has been held for long at the last refusal of each.
    sleep(Duration::from_secs(1)).await;
    let before: Vec<_> = processes.iter().map(Process::refusals).collect();
    until(
        "not every process has asked again, or one that comes next opens no stream",
        || {
            processes.iter().zip(&before).all(|(process, before)| {
                // A process comes nearer if the machine stalls, so that places of others expire.
                let is_near = process.ahead.load(SeqCst) < NEAR;
                assert!(is_near || process.streams() == 0, "{process:?}");
                process.refusals() > *before && (!is_near || process.streams() > 0)
            })
        },
    )
    .await;
    drop(waits);
    lease.release().await.unwrap();
}
