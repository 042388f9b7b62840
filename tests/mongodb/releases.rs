//! What acknowledges a release: the primary alone, unless a failover must not undo it.

mod late;
mod overtaken;

use std::{sync::Arc, time::Duration};

use leasehold::{
    Key, Leases, MongoStore, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, LeaseId, ReleaseAnswer,
        ReleaseRequest,
    },
};
use mongodb::bson::Document;
use tokio::time::sleep;

use super::{
    Commands, Engine, Fixture, LONG, SHORT,
    durability::{BOTH, careless},
    short_lived,
};

/// Which members must have a write before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acknowledged {
    ByThePrimary,
    Durably,
}

/// The write concern of the only command that changed something.
fn of_the_only_change(commands: &Commands) -> Acknowledged {
    let mut changes = commands.take();
    changes.retain(|command| command.contains_key("writeConcern"));
    let [change] = &changes[..] else {
        panic!("{changes:?}");
    };
    of(change)
}

fn of(change: &Document) -> Acknowledged {
    let concern = change.get_document("writeConcern").unwrap();
    if concern.get_bool("j") == Ok(true) {
        Acknowledged::Durably
    } else {
        assert_eq!(concern.get_i32("w"), Ok(1), "{change}");
        Acknowledged::ByThePrimary
    }
}

async fn watched(engine: Engine) -> (MongoStore, Commands) {
    let (collection, commands) = careless(engine).await;
    let store = MongoStore::new(&collection);
    // With its first write the store asks which kind of server it has.
    store.evict(&Key::new("none").unwrap()).await.unwrap();
    commands.take();
    (store, commands)
}

#[tokio::test]
async fn a_plain_release_is_acknowledged_by_the_primary_alone() {
    for engine in BOTH {
        let (store, commands) = watched(engine).await;
        let leases = Leases::new(store.clone());
        for (shared, dropped) in [(false, false), (true, false), (false, true)] {
            let acquire = leases.acquire("key", LONG);
            let acquire = if shared { acquire.shared() } else { acquire };
            let lease = acquire.await.unwrap();
            assert_eq!(of_the_only_change(&commands), Acknowledged::Durably);
            if dropped {
                drop(lease);
                leases.close().await;
            } else {
                lease.release().await.unwrap();
            }
            let mut changes = commands.take();
            changes.retain(|command| command.contains_key("writeConcern"));
            // As far as is known, a shared lease need not be the only one of its key, so its release may take two
            // commands.
            assert!(!changes.is_empty());
            for change in &changes {
                assert_eq!(of(change), Acknowledged::ByThePrimary, "{engine:?}");
            }
        }
        let held = store.inspect(&Key::new("key").unwrap()).await.unwrap();
        assert!(held.unwrap().is_free(), "{engine:?}");
    }
}

#[tokio::test]
async fn a_release_that_must_not_be_undone_is_durable() {
    for engine in BOTH {
        let (store, commands) = watched(engine).await;
        let leases = Leases::new(store.clone());
        // A release with a minimum hold is durable.
        let lease = leases
            .acquire("held on", LONG)
            .min_hold(SHORT)
            .await
            .unwrap();
        commands.take();
        lease.release().await.unwrap();
        assert_eq!(of_the_only_change(&commands), Acknowledged::Durably);

        // A release after the local deadline is durable.
        let lease = short_lived(&leases, "late").await;
        sleep(SHORT).await;
        commands.take();
        let _ = lease.release().await;
        assert_eq!(of_the_only_change(&commands), Acknowledged::Durably);

        // Every release is durable if the application asks for that.
        let durable = Leases::new(store.clone().durable_releases(true));
        let lease = durable.acquire("said", LONG).await.unwrap();
        commands.take();
        lease.release().await.unwrap();
        assert_eq!(of_the_only_change(&commands), Acknowledged::Durably);
    }
}

/// A handoff to a waiter of this process is an acquire, so it is durable.
#[tokio::test]
async fn a_handover_is_durable() {
    for engine in BOTH {
        let (store, commands) = watched(engine).await;
        let leases = Leases::new(store);
        let first = leases.acquire("key", LONG).await.unwrap();
        let waiter = tokio::spawn({
            let leases = leases.clone();
            async move { leases.acquire("key", LONG).await.unwrap() }
        });
        while !commands.names().iter().any(|name| name == "findAndModify") {
            sleep(Duration::from_millis(5)).await;
        }
        commands.take();
        first.release().await.unwrap();
        let second = waiter.await.unwrap();
        let changes = commands.take();
        let changes = changes.iter().filter(|it| it.contains_key("writeConcern"));
        let mut handed_over = false;
        for change in changes {
            if change.contains_key("findAndModify") {
                assert_eq!(of(change), Acknowledged::Durably, "{engine:?}");
                handed_over = true;
            }
        }
        assert!(handed_over);
        second.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_batch_is_as_durable_as_the_one_of_it_that_has_to_be() {
    for engine in BOTH {
        let (store, commands) = watched(engine).await;
        let mut granted = Vec::new();
        for number in 0..4 {
            let key = Key::new(format!("key {number}")).unwrap();
            let ask = AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG);
            let answer = store.acquire(&ask).await.unwrap();
            assert!(matches!(answer, AcquireAnswer::Granted(_)));
            granted.push(ReleaseRequest::new(ask.key, ask.lease).likely_sole());
        }
        commands.take();
        let mut releases = granted.into_iter();
        let plain = |release: ReleaseRequest| BatchRequest::Release(release.undoable());
        let [one, two] = [(); 2].map(|()| plain(releases.next().unwrap()));
        store.batch(&[one, two]).await.unwrap();
        assert_eq!(of_the_only_change(&commands), Acknowledged::ByThePrimary);

        let durable = BatchRequest::Release(releases.next().unwrap());
        store
            .batch(&[
                durable,
                plain(ReleaseRequest::new(
                    Key::new("x").unwrap(),
                    LeaseId::random(),
                )),
            ])
            .await
            .unwrap();
        let first = &commands.take()[0];
        assert_eq!(of(first), Acknowledged::Durably);

        let key = Key::new("new").unwrap();
        let ask = AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG);
        let mixed = [
            BatchRequest::Acquire(Arc::new(ask)),
            plain(releases.next().unwrap()),
        ];
        store.batch(&mixed).await.unwrap();
        assert_eq!(of_the_only_change(&commands), Acknowledged::Durably);
    }
}

/// What a failover may do to a plain release: it undoes it, and the key stays taken until the ttl is over. The test
/// puts the document back as it was before.
#[tokio::test]
async fn a_release_that_was_undone_leaves_the_key_taken_and_nothing_worse() {
    let fixture = Fixture::new(Engine::MongoDb);
    let (store, collection) = (fixture.store().await, fixture.collection().await);
    let leases = Leases::new(store.clone());
    let lease = leases.acquire("key", SHORT * 4).await.unwrap();
    let fence = lease.fence();
    let before = collection.find_one(Document::new()).await.unwrap().unwrap();
    lease.release().await.unwrap();
    let id = mongodb::bson::doc! { "_id": "key" };
    collection.replace_one(id, before).await.unwrap();
    let next = leases.acquire("key", LONG).await.unwrap();
    assert!(next.fence() > fence, "it was granted after the ttl");
    let again = ReleaseRequest::new(next.key().clone(), next.id());
    assert_eq!(
        store.release(&again).await.unwrap(),
        ReleaseAnswer::Released
    );
}

/// Many plain releases are one statement, whose count shows whether all of them were carried out. If one was not, each
/// has its own answer.
#[tokio::test]
async fn many_plain_releases_are_one_statement_and_each_has_its_answer() {
    for engine in BOTH {
        let (collection, commands) = careless(engine).await;
        let store = MongoStore::new(&collection);
        let mut releases = Vec::new();
        for number in 0..5 {
            let key = Key::new(format!("key {number}")).unwrap();
            let ask = AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG);
            store.acquire(&ask).await.unwrap();
            releases.push(
                ReleaseRequest::new(ask.key, ask.lease)
                    .likely_sole()
                    .undoable(),
            );
        }
        let others = releases.split_off(2);
        let batch = |releases: &[ReleaseRequest]| {
            let requests: Vec<_> = releases
                .iter()
                .cloned()
                .map(BatchRequest::Release)
                .collect();
            let store = store.clone();
            async move {
                let answers = store.batch(&requests).await.unwrap().into_iter();
                let answer = |answer| match answer {
                    Ok(BatchAnswer::Release(answer)) => answer,
                    other => panic!("{other:?}"),
                };
                answers.map(answer).collect::<Vec<_>>()
            }
        };
        commands.take();
        assert_eq!(batch(&releases).await, [ReleaseAnswer::Released; 2]);
        assert_eq!(commands.names(), ["update"]);

        // One lease was evicted, one key was never locked, and one key has another holder of the same owner.
        let [evicted, _, beside] = &others[..] else {
            panic!("{others:?}");
        };
        store.evict(&evicted.key).await.unwrap();
        let again =
            AcquireRequest::exclusive(beside.key.clone(), LeaseId::random(), "me".into(), LONG);
        store.acquire(&again.clone().reentrant()).await.unwrap();
        let unknown = ReleaseRequest::new(Key::new("none").unwrap(), LeaseId::random());
        let mut all = others.clone();
        all.push(unknown.likely_sole().undoable());
        let expected = [
            ReleaseAnswer::NotHeld,
            ReleaseAnswer::Released,
            ReleaseAnswer::Released,
            ReleaseAnswer::NotHeld,
        ];
        assert_eq!(batch(&all).await, expected);
        let left = store.inspect(&beside.key).await.unwrap().unwrap().holders;
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].lease, again.lease);
        // The releases are repeated. Until the next grant the document tells that the lease was released.
        let expected = [ReleaseAnswer::NotHeld, ReleaseAnswer::Released];
        assert_eq!(batch(&others[..2]).await, expected);
    }
}
