//! What goes over the wire: how many requests, and that they refresh nothing.

use std::time::Duration;

use elasticsearch::http::Method::{Get, Post};
use futures::future::join_all;
use leasehold::{
    AcquireAnswer, Attempt, ConvertAnswer, ConvertRequest, Key, LeaseId, Leases, Mode,
    ReleaseRequest, RenewRequest,
};
use leasehold_tests::{many, proxy::Proxy};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{BOTH, Fixture, LONG, SHORT, ask, granted};

#[tokio::test]
async fn each_operation_is_one_request() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let store = fixture.store_at(&format!("http://{}", proxy.address));
        let leases = Leases::new(store.clone());
        let alias = fixture.write_alias().replace('-', "%2D");
        // Where the locks are is asked for once, by the first of all.
        leases.inspect("key").await.unwrap();
        let first = proxy.http_requests();
        let question = format!("GET /{},{alias}?", fixture.alias.replace('-', "%2D"));
        assert!(
            first[0].starts_with(&question) && first.len() == 2,
            "{first:?}"
        );
        let one = |path: &str, what: &str| {
            let requests = proxy.http_requests();
            assert_eq!(requests.len(), 1, "{what}: {requests:?}");
            let path = format!("POST /{alias}/{path}");
            assert!(requests[0].starts_with(&path), "{what}: {requests:?}");
            assert!(!requests[0].contains("refresh"), "{what}: {requests:?}");
        };
        // What mostly finds that there is nothing to write.
        let one_update = |what: &str| one("_update/", what);
        // What has to come through a crowd.
        let one_bulk = |what: &str| one("_bulk?", what);

        let lease = leases.acquire("key", LONG).await.unwrap();
        one_update("a free acquire");
        let held = leases.try_acquire("key", LONG).await.unwrap();
        assert!(matches!(held, Attempt::Held(_)));
        one_update("a held attempt");
        lease.renew().await.unwrap();
        one_bulk("a renewal");
        leases.inspect("key").await.unwrap();
        one_update("a look");
        lease.release().await.unwrap();
        one_bulk("a release");
        leases.evict("key").await.unwrap();
        one_bulk("an eviction");

        leases.acquire("dies", SHORT).await.unwrap().detach();
        sleep(SHORT + Duration::from_millis(10)).await;
        proxy.http_requests();
        let next = leases.acquire("dies", LONG).await.unwrap();
        one_update("a takeover");
        next.release().await.unwrap();
        sleep(Duration::from_millis(10)).await;
        proxy.http_requests();
        leases.remove_expired("dies").await.unwrap();
        one_update("a removal");

        let reader = ask().shared();
        granted(&store, &reader).await;
        one_bulk("a shared acquire");
        granted(&store, &ask().shared().reentrant().note("again")).await;
        one_bulk("another beside it");
        store.acquire(&ask().permits(1, 4)).await.unwrap();
        one_bulk("an attempt for permits");
        let upgrade = ConvertRequest::upgrade(reader.key.clone(), reader.lease);
        store.convert(&upgrade).await.unwrap();
        one_update("a conversion");
        let release = ReleaseRequest::new(reader.key.clone(), reader.lease);
        let release = release.min_hold(LONG, LeaseId::random());
        store.release(&release).await.unwrap();
        one_bulk("a release that holds on");
    }
}

#[tokio::test]
async fn a_thousand_renewals_are_one_request() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let store = fixture.store_at(&format!("http://{}", proxy.address));
        let request = |number| {
            let key = Key::new(format!("key {number}")).unwrap();
            RenewRequest::new(key, LeaseId::random(), LONG)
        };
        let requests: Vec<_> = (0..1_000).map(request).collect();
        store.renew(&[request(0)]).await.unwrap();
        proxy.http_requests();
        let answers = store.renew(&requests).await.unwrap();
        assert_eq!(answers.len(), 1_000);
        let sent = proxy.http_requests();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert!(sent[0].contains("/_bulk"), "{sent:?}");
    }
}

/// Fewer than on MongoDB, because these engines take longer for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_kept_leases_cost_a_handful_of_requests_a_period() {
    let keep = async |engine| {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let store = fixture.store_at(&format!("http://{}", proxy.address));
        let sent = || proxy.http_requests().len();
        // One for each thousand, and some for leases that are not in step yet.
        let enough = 6;
        let cost = many::cost_of_a_period(store, 2_000, enough, sent).await;
        assert!((2..=enough).contains(&cost), "{cost} requests");
    };
    join_all(BOTH.map(keep)).await;
}

/// An answer that writes nothing comes from the primary alone, and one that is cut off would go on
/// giving it. A grant that is asked for again is therefore written again: only then the replicas
/// have it, too.
#[tokio::test]
async fn a_repeated_grant_is_written_again_and_a_refusal_is_not() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (store, request) = (fixture.store(), ask());
        let written = async || number(&fixture).await;
        let first = granted(&store, &request).await;
        let before = written().await;
        sleep(Duration::from_millis(50)).await;
        let again = granted(&store, &request).await;
        assert_eq!(written().await, before + 1);
        assert_eq!(
            (first.fence, first.expires_at),
            (again.fence, again.expires_at)
        );
        // The time is that of the second answer, so less is left.
        assert!(again.expires_in() <= first.expires_in() - Duration::from_millis(50));

        let mut other = request.clone();
        other.lease = LeaseId::random();
        store.acquire(&other).await.unwrap();
        assert_eq!(written().await, before + 1);
    }
}

/// For the same reason.
#[tokio::test]
async fn a_repeated_conversion_is_written_again_and_a_refused_one_is_not() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (store, request) = (fixture.store(), ask());
        let (key, lease) = (request.key.clone(), request.lease);
        let first = granted(&store, &request).await;
        let downgrade = ConvertRequest::downgrade(key.clone(), lease);
        let upgrade = ConvertRequest::upgrade(key.clone(), lease);
        let mut fences = Vec::new();
        for conversion in [&downgrade, &upgrade] {
            let before = number(&fixture).await;
            for again in 1..=2 {
                let answer = store.convert(conversion).await.unwrap();
                let ConvertAnswer::Converted(grant) = answer else {
                    panic!("{answer:?}");
                };
                assert_eq!(number(&fixture).await, before + again);
                assert_eq!(grant.acquired_at, first.acquired_at);
                assert_eq!(grant.expires_at, first.expires_at);
                fences.push(grant.fence);
            }
        }
        assert_eq!(fences[..2], [first.fence; 2]);
        assert!(fences[2] > first.fence && fences[3] == fences[2]);

        store.convert(&downgrade).await.unwrap();
        granted(&store, &ask().shared()).await;
        let before = number(&fixture).await;
        let held = store.convert(&upgrade).await.unwrap();
        assert!(matches!(held, ConvertAnswer::Held(_)), "{held:?}");
        let nobody = ConvertRequest::upgrade(key.clone(), LeaseId::random());
        let lost = store.convert(&nobody).await.unwrap();
        assert_eq!(lost, ConvertAnswer::TakenOver);
        assert_eq!(number(&fixture).await, before);
        // The evicted are no holders any more, whoever they were.
        store.evict(&key).await.unwrap();
        for conversion in [&upgrade, &downgrade] {
            let lost = store.convert(conversion).await.unwrap();
            assert_eq!(lost, ConvertAnswer::TakenOver);
        }
        assert_eq!(number(&fixture).await, before + 1);
    }
}

/// The number of the newest change of the document of `key`.
async fn number(fixture: &Fixture) -> i64 {
    let path = format!("{}/_doc/key", fixture.alias);
    let document = fixture.ask(Get, &path, Value::Null).await;
    document["_seq_no"].as_i64().unwrap()
}

/// What the stores rely on, and the documentation of neither engine promises: the answer to an
/// update that changes nothing shows the document as the script left it, if it is asked for by a
/// filter.
#[tokio::test]
async fn an_answer_that_changes_nothing_shows_what_the_script_added() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        Leases::new(fixture.store())
            .acquire("key", LONG)
            .await
            .unwrap()
            .detach();
        let path = format!("{}/_update/key", fixture.alias);
        let script = "ctx._source.now = 7; ctx.op = 'none'";
        let shown = json!({ "script": script, "_source": { "includes": ["*"] } });
        let answer = fixture.ask(Post, &path, shown).await;
        assert_eq!(answer["result"], "noop", "{answer}");
        assert_eq!(answer["get"]["_source"]["now"], 7, "{answer}");
        let stored = json!({ "script": script, "_source": true });
        let answer = fixture.ask(Post, &path, stored).await;
        assert!(answer["get"]["_source"]["now"].is_null(), "{answer}");
    }
}

/// The index counts what is written to it, and has a number for every change.
#[tokio::test]
async fn fifty_losing_attempts_write_nothing() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let mut theirs = ask().permits(2, 4);
        theirs.owner = "they".into();
        // Each key with one holder, and what is refused beside it.
        for (number, (holder, attempt)) in [
            (ask(), ask()),
            (ask(), ask().shared()),
            (ask().shared(), ask()),
            (ask().shared(), ask().permits(1, 4)),
            (theirs.clone(), ask().permits(3, 4)),
            (theirs, ask().permits(3, 4).reentrant()),
        ]
        .into_iter()
        .enumerate()
        {
            let (mut holder, mut attempt) = (holder, attempt);
            holder.key = Key::new(format!("key{number}")).unwrap();
            attempt.key = holder.key.clone();
            let (written, noops) = indexed(&fixture).await;
            granted(&store, &holder).await;
            assert_eq!(
                indexed(&fixture).await,
                (written + 1, noops),
                "the control: a grant is counted"
            );
            let document = format!("{}/_doc/key{number}", fixture.alias);
            let before = fixture.ask(Get, &document, Value::Null).await;
            for _ in 0..50 {
                let answer = store.acquire(&attempt).await.unwrap();
                assert!(matches!(answer, AcquireAnswer::Held(_)), "{answer:?}");
            }
            assert_eq!(fixture.ask(Get, &document, Value::Null).await, before);
            let after = indexed(&fixture).await;
            assert_eq!(after.0, written + 1);
            // Those in a bulk are counted by later versions only, but none is anything else.
            let counted = after.1 - noops;
            let uncounted = counted == 0 && attempt.mode != Mode::Exclusive;
            assert!(counted == 50 || uncounted, "{counted} of 50");
        }
    }
}

/// How often the index was written to, and how often an update of it changed nothing.
async fn indexed(fixture: &Fixture) -> (i64, i64) {
    let path = format!("{}/_stats/indexing", fixture.alias);
    let stats = fixture.ask(Get, &path, Value::Null).await;
    let indexing = &stats["_all"]["primaries"]["indexing"];
    (
        indexing["index_total"].as_i64().unwrap(),
        indexing["noop_update_total"].as_i64().unwrap(),
    )
}
