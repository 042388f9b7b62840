//! Several holders of one key: races for it, and numbers at their limits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use elasticsearch::http::Method::{Get, Put};
use futures::future::join_all;
use leasehold::{
    Attempt, Key, Store,
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, LeaseId, ReleaseAnswer,
        ReleaseRequest, RenewAnswer, RenewRequest, SCHEMA,
    },
};
use leasehold_tests::crowd::Crowd;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{BOTH, Engine, Fixture, LONG, ask, granted, leases};

const TASKS: usize = 32;

/// Releases the lease.
async fn leave(store: &dyn Store, key: Key, lease: LeaseId) {
    let answer = store.release(&ReleaseRequest::new(key, lease)).await;
    assert_eq!(answer.unwrap(), ReleaseAnswer::Released);
}

/// Each of them writes, and so overtakes the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_readers_come_stay_and_go_at_once() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let readers: Vec<_> = (0..TASKS).map(|_| ask().shared()).collect();
        let grants = join_all(readers.iter().map(|reader| granted(&store, reader))).await;
        let mut fences: Vec<_> = grants.iter().map(|grant| grant.fence).collect();
        fences.sort();
        fences.dedup();
        assert_eq!(fences.len(), TASKS);
        let key = &readers[0].key;
        let state = store.inspect(key).await.unwrap().unwrap();
        assert_eq!(state.holders.len(), TASKS);
        let shown: Vec<_> = state.holders.iter().map(|holder| holder.fence).collect();
        assert_eq!(shown, fences, "oldest first");

        let renew = async |lease| {
            let request = [RenewRequest::new(key.clone(), lease, LONG)];
            store.renew(&request).await.unwrap().remove(0).unwrap()
        };
        for answer in join_all(readers.iter().map(|reader| renew(reader.lease))).await {
            assert!(matches!(answer, RenewAnswer::Renewed(_)), "{answer:?}");
        }
        let release = |reader: &AcquireRequest| leave(&*store, key.clone(), reader.lease);
        join_all(readers.iter().map(release)).await;
        let state = store.inspect(key).await.unwrap().unwrap();
        assert!(state.is_free() && Some(&state.fence) == fences.last());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_thirty_two_tasks_four_have_a_permit_at_once() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        // All requests come at once. As many are granted as there are permits, no more and no
        // fewer.
        let requests: Vec<_> = (0..TASKS).map(|_| ask().permits(1, 4).unwrap()).collect();
        let answers = join_all(requests.iter().map(|request| store.acquire(request))).await;
        let mut granted = 0;
        for (request, answer) in requests.into_iter().zip(answers) {
            if let AcquireAnswer::Granted(_) = answer.unwrap() {
                granted += 1;
                leave(&*store, request.key, request.lease).await;
            }
        }
        assert_eq!(granted, 4);

        // The tasks go on until each had its turn: while some release, others ask.
        let at_work = Arc::new(AtomicUsize::new(0));
        let task = async |number: usize| {
            let (store, at_work) = (store.clone(), at_work.clone());
            let work = async move {
                let request = ask().permits(1, 4).unwrap();
                while let AcquireAnswer::Held(_) = store.acquire(&request).await.unwrap() {
                    sleep(Duration::from_millis(10 + number as u64)).await;
                }
                let beside = at_work.fetch_add(1, SeqCst);
                sleep(Duration::from_millis(10)).await;
                at_work.fetch_sub(1, SeqCst);
                leave(&*store, request.key, request.lease).await;
                beside
            };
            tokio::spawn(work).await.unwrap()
        };
        for beside in join_all((0..TASKS).map(task)).await {
            assert!(beside < 4, "{beside} others had one");
        }
    }
}

#[tokio::test]
async fn of_two_readers_that_upgrade_neither_wins_until_one_leaves() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (store, other) = (fixture.store(), fixture.store());
        for _ in 0..10 {
            let (one, two) = (ask().shared(), ask().shared());
            granted(&store, &one).await;
            let newest = granted(&store, &two).await.fence;
            let key = &one.key;
            let upgrades = [&one, &two].map(|it| ConvertRequest::upgrade(key.clone(), it.lease));
            let race = tokio::join!(store.convert(&upgrades[0]), other.convert(&upgrades[1]));
            for (answer, beside) in [(race.0, two.lease), (race.1, one.lease)] {
                let ConvertAnswer::Held(held) = answer.unwrap() else {
                    panic!("an upgrade beside another reader");
                };
                let shown: Vec<_> = held.holders().iter().map(|holder| holder.lease).collect();
                assert_eq!(shown, [beside]);
            }

            leave(&*store, key.clone(), one.lease).await;
            let answer = other.convert(&upgrades[1]).await.unwrap();
            let ConvertAnswer::Converted(grant) = answer else {
                panic!("{answer:?}");
            };
            assert!(grant.fence > newest);
            leave(&*store, key.clone(), two.lease).await;
        }
    }
}

/// Another owner's reader was granted the key in between, with a later fence.
#[tokio::test]
async fn an_owner_that_enters_again_takes_no_fence_from_the_key() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (store, mut other) = (fixture.store(), ask().shared());
        other.owner = "they".into();
        let first = granted(&store, &ask().shared()).await;
        let between = granted(&store, &other).await;
        let again = granted(&store, &ask().shared().reentrant()).await;
        assert!(between.fence > first.fence);
        assert_eq!(again.fence, first.fence);
        let state = store.inspect(&other.key).await.unwrap().unwrap();
        assert_eq!(state.fence, between.fence);
        // Its owner has two leases now, and the third gets the later of their fences.
        let second = granted(&store, &ask().shared()).await;
        let again = granted(&store, &ask().shared().reentrant()).await;
        assert_eq!(again.fence, second.fence);
    }
}

/// A sum that wrapped around would be small enough for any capacity.
#[tokio::test]
async fn permits_beyond_every_number_are_refused() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        granted(&store, &ask().permits(i64::MAX - 1, i64::MAX).unwrap()).await;
        let state = async || store.inspect(&ask().key).await.unwrap().unwrap();
        for wanted in [2, i64::MAX] {
            let refused = ask().permits(wanted, i64::MAX).unwrap();
            let answer = store.acquire(&refused).await.unwrap();
            assert!(matches!(answer, AcquireAnswer::Held(_)), "{answer:?}");
        }
        granted(&store, &ask().permits(1, i64::MAX).unwrap()).await;
        let permits: Vec<_> = state().await.holders.iter().map(|it| it.permits).collect();
        assert_eq!(permits, [i64::MAX - 1, 1]);

        // Two holders have too many permits already.
        let document = format!("{}/_doc/key", fixture.alias);
        let mut lock = fixture.ask(Get, &document, Value::Null).await["_source"].take();
        lock["holders"][1]["permits"] = json!(i64::MAX);
        fixture.ask(Put, &document, lock).await;
        let answer = store.acquire(&ask().permits(1, 4).unwrap()).await.unwrap();
        assert!(matches!(answer, AcquireAnswer::Held(_)), "{answer:?}");
    }
}

#[tokio::test]
async fn a_note_may_be_long_and_is_stored_as_it_is() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        for note in [
            "é".repeat(512),
            "{{x}} \"$y\"\n${z}".to_owned(),
            String::new(),
        ] {
            let request = ask().shared().note(&*note);
            granted(&store, &request).await;
            let state = store.inspect(&request.key).await.unwrap().unwrap();
            let shown = state.holders.last().and_then(|it| it.note.as_deref());
            assert_eq!(shown, Some(&*note));
        }
    }
}

/// Clean-up and lists go by this expiry.
#[tokio::test]
async fn the_document_expires_with_the_last_of_its_holders() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let (long, mut short) = (ask().shared(), ask().shared());
        short.ttl = LONG / 2;
        let key = &long.key;
        let expires_at = async || {
            let path = format!("{}/_doc/key", fixture.alias);
            let document = fixture.ask(Get, &path, Value::Null).await;
            document["_source"]["expires_at"].as_i64().unwrap()
        };
        let last = granted(&store, &long).await.expires_at.timestamp_millis();
        granted(&store, &short).await;
        assert_eq!(expires_at().await, last);
        let renewal = |lease, ttl| [RenewRequest::new(key.clone(), lease, ttl)];
        let short_again = renewal(short.lease, LONG / 2);
        store.renew(&short_again).await.unwrap();
        assert_eq!(expires_at().await, last);
        store.renew(&renewal(long.lease, LONG / 3)).await.unwrap();
        assert_eq!(expires_at().await, last, "a renewal for less shortens");
        let grant = granted(&store, &short).await;
        assert_eq!(expires_at().await, last);

        // The minimum hold counts from the grant, so some time has to pass first.
        sleep(Duration::from_millis(20)).await;
        let release = ReleaseRequest::new(key.clone(), short.lease);
        let release = release.min_hold(2 * LONG, LeaseId::random());
        store.release(&release).await.unwrap();
        let until = grant.acquired_at + 2 * LONG;
        assert_eq!(expires_at().await, until.timestamp_millis());
        leave(&*store, key.clone(), long.lease).await;
        assert_eq!(expires_at().await, until.timestamp_millis());
    }
}

/// The end of a minimum hold is a date that the index takes, however late it is.
#[tokio::test]
async fn a_minimum_hold_without_end_is_kept() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (store, request) = (fixture.store(), ask());
        let first = granted(&store, &request).await;
        let under = LeaseId::random();
        let release = ReleaseRequest::new(request.key.clone(), request.lease);
        let release = release.min_hold(Duration::MAX, under);
        let answer = store.release(&release).await.unwrap();
        assert_eq!(answer, ReleaseAnswer::Released);
        let AcquireAnswer::Held(held) = store.acquire(&ask()).await.unwrap() else {
            panic!("granted within the minimum hold");
        };
        assert_eq!(held.holders()[0].lease, under);
        assert_eq!(held.holders()[0].fence, first.fence);
        assert!(held.expires_in() > LONG);
        // Only an eviction ends it. After that it is no holder any more.
        let eviction = store.evict(&request.key).await.unwrap().unwrap();
        assert!(eviction.fence > first.fence);
        let release = ReleaseRequest::new(request.key, under);
        let release = release.min_hold(LONG, LeaseId::random());
        let answer = store.release(&release).await.unwrap();
        assert_eq!(answer, ReleaseAnswer::NotHeld);
        granted(&store, &ask()).await;
    }
}

#[tokio::test]
async fn a_key_takes_a_thousand_holders_and_not_one_more() {
    join_all(BOTH.map(takes_a_thousand_holders)).await;
}

async fn takes_a_thousand_holders(engine: Engine) {
    let fixture = Fixture::prepared(engine).await;
    let store = fixture.store();
    let crowd = Crowd::around_the_first(&*store).await;
    let document = format!("{}/_doc/crowd", fixture.alias);
    let mut lock = fixture.ask(Get, &document, Value::Null).await["_source"].take();
    let holders = lock["holders"].as_array_mut().unwrap();
    for lease in &crowd.leases {
        let mut holder = holders[0].clone();
        holder["lease"] = json!(lease.to_string());
        holders.push(holder);
    }
    let put = format!("{document}?refresh=true");
    let stored = fixture.ask(Put, &put, lock).await;
    assert_eq!(stored["result"], "updated");
    // The document comes with its version, which every write raises.
    let before = fixture.ask(Get, &document, Value::Null).await;
    crowd.takes_no_other(&store).await;
    let after = fixture.ask(Get, &document, Value::Null).await;
    assert!(after == before, "a refusal has changed the document");
    crowd.lives_on(&store).await;
}

/// The server's clock has stepped back since the release.
#[tokio::test]
async fn a_key_that_was_released_in_the_future_is_free() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = leases(fixture.store());
        let now = chrono::Utc::now().timestamp_millis();
        let later = now + 3_600_000;
        // The time since which the key is free is not known, so the key is not kept for the process that waits.
        let waits = json!([{
            "waiter": LeaseId::random().to_string(), "owner": "they", "mode": "exclusive", "permits": 1,
            "since": now, "until": now + 30_000,
        }]);
        for (number, waiters) in (0..5).flat_map(|number| [(number, None), (number, Some(&waits))])
        {
            let key = format!(
                "key{number}{}",
                if waiters.is_some() { "-awaited" } else { "" }
            );
            let mut tombstone = json!({
                "key": &key, "schema": SCHEMA, "fence": later, "released_at": later, "written_at": later,
            });
            if let Some(waiters) = waiters {
                tombstone["waiters"] = waiters.clone();
            }
            let path = format!("{}/_doc/{key}", fixture.alias);
            let stored = fixture.ask(Put, &path, tombstone).await;
            assert_eq!(stored["result"], "created", "{stored}");
            let attempt = leases.try_acquire(&key, LONG);
            let attempt = match number {
                0 => attempt,
                1 => attempt.shared(),
                2 => attempt.permits(1, 2),
                3 => attempt.reentrant(),
                _ => attempt.shared().reentrant(),
            };
            let attempt = attempt.await.unwrap();
            let Attempt::Acquired(lease) = attempt else {
                panic!("{number} on {engine:?}: {attempt:?}");
            };
            assert!(lease.fence().get() > later);
            lease.release().await.unwrap();
        }
    }
}
