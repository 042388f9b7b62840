//! Many leases are renewed by one statement. More statements are sent only if that is needed.

use std::time::Duration;

use leasehold::{
    Key, Lease, Leases, MongoStore, Store,
    store::{AcquireAnswer, AcquireRequest, Grant, KnownGrant, LeaseId, RenewAnswer, RenewRequest},
};
use leasehold_tests::disguise::Disguise;
use mongodb::{
    bson::{Document, doc},
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use tokio::time::{sleep_until, timeout};

use super::{Commands, Engine, Fixture, LONG, PATIENCE, SHORT, in_time, soon_mended};

struct Held {
    store: MongoStore,
    commands: Commands,
    renewals: Vec<RenewRequest>,
}

async fn grant(store: &MongoStore, request: &AcquireRequest) -> Grant {
    match store.acquire(request).await.unwrap() {
        AcquireAnswer::Granted(grant) => grant,
        refused => panic!("{refused:?}"),
    }
}

fn known(request: &AcquireRequest, grant: &Grant) -> RenewRequest {
    RenewRequest::new(request.key.clone(), request.lease, LONG * 2).known(KnownGrant {
        fence: grant.fence,
        acquired_at: grant.acquired_at,
    })
}

fn ask(key: &str) -> AcquireRequest {
    let key = Key::new(key).unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG)
}

/// This many leases that were acquired, and the renewals of their grants.
async fn held(engine: Engine, leases: usize) -> Held {
    let (collection, commands) = Fixture::new(engine).watched().await;
    let store = MongoStore::new(&collection);
    let mut renewals = Vec::new();
    for number in 0..leases {
        let request = ask(&format!("key {number}")).fresh();
        renewals.push(known(&request, &grant(&store, &request).await));
    }
    commands.take();
    Held {
        store,
        commands,
        renewals,
    }
}

fn statements(command: &Document) -> &Vec<mongodb::bson::Bson> {
    command.get_array("updates").unwrap()
}

fn is_renewed(answer: &Result<RenewAnswer, leasehold::Error>) -> bool {
    matches!(answer, Ok(RenewAnswer::Renewed(_)))
}

#[tokio::test]
async fn all_of_a_ttl_are_one_statement_that_nothing_has_to_be_looked_at_after() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let held = held(engine, 100).await;
        let answers = held.store.renew(&held.renewals).await.unwrap();
        assert!(answers.iter().all(is_renewed));
        let sent = held.commands.take();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(statements(&sent[0]).len(), 1);
        for (request, answer) in held.renewals.iter().zip(&answers) {
            let Ok(RenewAnswer::Renewed(grant)) = answer else {
                unreachable!("it is one");
            };
            assert_eq!(Some(grant.fence), request.known.map(|known| known.fence));
            let state = held.store.inspect(&request.key).await.unwrap().unwrap();
            let left = state.expires_in();
            assert!(left > LONG && left <= LONG * 2, "{left:?}");
        }
    }
}

#[tokio::test]
async fn each_ttl_is_a_statement_of_the_same_command() {
    let mut held = held(Engine::MongoDb, 30).await;
    for (number, request) in held.renewals.iter_mut().enumerate() {
        request.ttl = LONG * (2 + number as u32 % 3);
    }
    let answers = held.store.renew(&held.renewals).await.unwrap();
    assert!(answers.iter().all(is_renewed));
    let sent = held.commands.take();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(statements(&sent[0]).len(), 3);
    for request in &held.renewals {
        let state = held.store.inspect(&request.key).await.unwrap().unwrap();
        let left = state.expires_in();
        assert!(left > request.ttl - LONG && left <= request.ttl, "{left:?}");
    }
}

/// The number of changed documents shows that one lease was not renewed, and a read shows which one.
#[tokio::test]
async fn one_that_is_over_takes_a_look_and_no_other_renewal_along() {
    let held = held(Engine::MongoDb, 20).await;
    held.store.evict(&held.renewals[7].key).await.unwrap();
    let next = ask("key 7");
    let next = (grant(&held.store, &next).await, next);
    held.commands.take();
    let answers = held.store.renew(&held.renewals).await.unwrap();
    assert_eq!(held.commands.names(), ["update", "find"]);
    assert_eq!(answers[7].as_ref().unwrap(), &RenewAnswer::TakenOver);
    assert_eq!(answers.iter().filter(|it| is_renewed(it)).count(), 19);
    let state = held.store.inspect(&next.1.key).await.unwrap().unwrap();
    assert_eq!(state.holders[0].expires_at, next.0.expires_at);
}

/// If the owner of a lease has entered again, the lease is in a list of several holders. The statement for many leases
/// does not change such a document.
#[tokio::test]
async fn one_beside_others_is_renewed_singly() {
    let held = held(Engine::MongoDb, 20).await;
    let beside = ask("key 3").reentrant();
    grant(&held.store, &beside).await;
    held.commands.take();
    let answers = held.store.renew(&held.renewals).await.unwrap();
    assert!(answers.iter().all(is_renewed), "{answers:?}");
    let sent = held.commands.take();
    assert_eq!(sent.len(), 4, "{sent:?}");
    let singly = statements(&sent[2]);
    let filter = singly[0].as_document().unwrap().get_document("q").unwrap();
    assert_eq!((singly.len(), filter), (1, &doc! { "_id": "key 3" }));
    let state = held.store.inspect(&beside.key).await.unwrap().unwrap();
    let renewed = |lease| {
        let holder = state.holders.iter().find(|holder| holder.lease == lease);
        holder.unwrap().expires_at - state.now > chrono::TimeDelta::from_std(LONG).unwrap()
    };
    assert!(renewed(held.renewals[3].lease) && !renewed(beside.lease));
}

/// A renewal with a ttl that is shorter than what the lease has left changes nothing, and counts as a renewal.
#[tokio::test]
async fn one_that_lives_longer_is_renewed() {
    let mut held = held(Engine::MongoDb, 5).await;
    for request in &mut held.renewals {
        request.ttl = SHORT;
    }
    let answers = held.store.renew(&held.renewals).await.unwrap();
    assert!(answers.iter().all(is_renewed), "{answers:?}");
    for request in &held.renewals {
        let state = held.store.inspect(&request.key).await.unwrap().unwrap();
        assert!(state.expires_in() > SHORT, "{state:?}");
    }
}

/// Two renewals that cross are carried out in any order, and neither takes back what the other gave.
#[tokio::test]
async fn a_shorter_one_among_others_takes_nothing_back() {
    let held = held(Engine::MongoDb, 20).await;
    held.store.renew(&held.renewals).await.unwrap();
    let older = held.renewals.iter().cloned().map(|mut request| {
        request.ttl = LONG;
        request
    });
    let answers = held.store.renew(&older.collect::<Vec<_>>()).await.unwrap();
    assert!(answers.iter().all(is_renewed), "{answers:?}");
    for request in &held.renewals {
        let state = held.store.inspect(&request.key).await.unwrap().unwrap();
        assert!(state.expires_in() > LONG, "{state:?}");
    }
}

/// A transaction locks the document of one lease. The statement that waits for it fails or hangs, and the leases that
/// are split off from it are renewed.
#[tokio::test]
async fn one_that_a_transaction_holds_takes_no_other_along() {
    for attempt in 1..=ATTEMPTS {
        let kept = beside_a_transaction().await;
        println!("{kept:?}");
        if kept.lost.is_empty() {
            return;
        }
        // Other leases are lost only if the machine stood still for longer than the test allows for.
        assert!(
            kept.control_lost > 0 && attempt < ATTEMPTS,
            "at attempt {attempt}: {kept:?}"
        );
    }
}

/// The ttl of each lease in a batch one of whose documents is locked by a transaction.
const SPLIT: Duration = Duration::from_secs(12);
/// How many attempts the test has on a machine that stands still for too long.
const ATTEMPTS: usize = 3;
/// How many leases are renewed together.
const TOGETHER: usize = 30;

/// What happened to the leases while each of them had to be renewed.
#[derive(Debug)]
struct Kept {
    /// The leases that were lost although no transaction locks them.
    lost: Vec<String>,
    /// How many leases of the control were lost. No transaction touches these, and they are as many.
    control_lost: usize,
}

/// Leases that are kept alive, in a collection of their own.
async fn keep(fixture: &Fixture, ttl: Duration) -> Vec<Lease> {
    let leases = Leases::new(fixture.store().await);
    let mut kept = Vec::new();
    for number in 0..TOGETHER {
        let key = format!("key {number}");
        kept.push(in_time(&key, ttl, || leases.acquire(&*key, ttl).keep_alive()).await);
    }
    kept
}

/// A batch is split for the last time after two thirds of the ttl. A lease is lost if the machine takes more than the
/// last third for the three commands up to then. In that case one of the commands takes at least a ninth of the ttl.
/// The leases of the control have no longer ttl than that, so some of them are lost as well.
async fn beside_a_transaction() -> Kept {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let apart = Fixture::new(Engine::MongoDbReplicaSet);
    let kept = keep(&fixture, SPLIT).await;
    let control = keep(&apart, SPLIT / 9).await;
    let other = fixture.collection().await;
    let mut session = other.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let mark = doc! { "$set": { "mark": 1 } };
    let marked = other.update_one(doc! { "_id": "key 7" }, mark);
    let marked = marked.session(&mut session).await.unwrap();
    assert_eq!(marked.modified_count, 1, "the control");
    // A lease that is live after this moment was renewed while the transaction was open.
    let latest = kept.iter().map(Lease::deadline).max().unwrap();
    let held = timeout(PATIENCE, kept[7].lost()).await;
    held.expect("the transaction holds it, and it is renewed");
    sleep_until(latest).await;
    let lost = kept.iter().filter(|lease| !lease.is_live());
    let lost = lost.map(|lease| lease.key().as_str().to_owned());
    let lost = lost.filter(|key| key != "key 7").collect();
    let control_lost = control.iter().filter(|lease| !lease.is_live()).count();
    session.abort_transaction().await.unwrap();
    Kept { lost, control_lost }
}

/// A router may change one document twice and another one not at all, so the number proves nothing.
#[tokio::test]
async fn through_a_router_a_look_always_follows() {
    // This engine uses the dialect with pipelines behind a router too.
    let fixture = Fixture::new(Engine::MongoDbAlpha);
    for (lies, expected) in [(true, &["update", "find"][..]), (false, &["update"])] {
        let mut options = match lies {
            true => {
                let router = Disguise::Router.of(&fixture.uri).await;
                soon_mended(ClientOptions::parse(&router).await.unwrap())
            }
            false => fixture.options().await,
        };
        let commands = Commands::default();
        let seen = commands.clone();
        options.command_event_handler = Some(EventHandler::callback(move |event| {
            if let CommandEvent::Started(started) = event
                && started.command_name != "hello"
            {
                seen.add(&started.command_name, started.command);
            }
        }));
        let store = MongoStore::new(&fixture.collection_with(options));
        let mut renewals = Vec::new();
        for number in 0..10 {
            let request = ask(&format!("{lies} {number}")).fresh();
            renewals.push(known(&request, &grant(&store, &request).await));
        }
        commands.take();
        let answers = store.renew(&renewals).await.unwrap();
        assert!(answers.iter().all(is_renewed), "{answers:?}");
        assert_eq!(commands.names(), expected);
    }
}
