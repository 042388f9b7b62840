//! The requests that are sent: how many there are, and that they refresh nothing.

use std::{future::IntoFuture, time::Duration};

use elasticsearch::http::Method::Get;
use futures::{StreamExt, TryStreamExt, future::join_all, stream};
use leasehold::{
    Attempt, Error, Key, Lease, LossReason, Store,
    store::{
        AcquireAnswer, ConvertAnswer, ConvertRequest, LeaseId, MAX_RENEWALS, ReleaseRequest,
        RenewRequest,
    },
};
use leasehold_tests::{layer::Layered, proxy::Proxy};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    BOTH, Engine, Fixture, LONG, ask, granted, leases,
    patience::{asks_again, until_quick},
    timed::Timed,
};

/// How often a test tries what has to be done in time, if each attempt shows that the machine was too slow.
const ATTEMPTS: usize = 10;
/// A release whose batch is not answered within this time is sent again, alone.
const OVERDUE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn each_operation_is_one_request() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let alias = fixture.write_alias().replace('-', "%2D");
        // The first request of a store asks where the locks are. That is asked only once.
        let (proxy, store) = until_quick(async || {
            let proxy = Proxy::to(fixture.host()).await;
            let store = fixture.bare_store_at(&format!("http://{}", proxy.address));
            match store.inspect(&ask().key).await {
                Err(error) if asks_again(&error) => None,
                looked => looked.unwrap().is_none().then_some((proxy, store)),
            }
        })
        .await;
        let (leases, other) = (leases(store.clone()), leases(store.clone()));
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
        // The key is in the body.
        let one_bulk = |what: &str| one("_bulk?", what);

        let lease = leases.acquire("key", LONG).await.unwrap();
        one_bulk("a free acquire");
        let held = other.try_acquire("key", LONG).await.unwrap();
        assert!(matches!(held, Attempt::Held(_)));
        one_bulk("a held attempt");
        // A second attempt only reads.
        let Attempt::Held(held) = other.try_acquire("key", LONG).await.unwrap() else {
            panic!("granted twice");
        };
        assert_eq!(held.holders()[0].lease, lease.id());
        let requests = proxy.http_requests();
        let look = format!("POST /{alias}/_mget");
        assert!(
            requests.len() == 1 && requests[0].starts_with(&look),
            "{requests:?}"
        );
        lease.renew().await.unwrap();
        one_bulk("a renewal");
        leases.inspect("key").await.unwrap();
        one_bulk("a look");
        lease.release().await.unwrap();
        one_bulk("a release");
        leases.evict("key").await.unwrap();
        one_bulk("an eviction");

        let mut brief = ask();
        (brief.key, brief.ttl) = (Key::new("dies").unwrap(), Duration::from_millis(10));
        granted(&store, &brief).await;
        let state = async || store.inspect(&brief.key).await.unwrap().unwrap();
        while !state().await.is_free() {}
        proxy.http_requests();
        let next = leases.acquire("dies", LONG).await.unwrap();
        one_bulk("a takeover");
        let fence = next.fence();
        next.release().await.unwrap();
        // A lock is kept until the clock has passed its fence.
        while state().await.now.timestamp_millis() <= fence.get() / 1_024 {}
        proxy.http_requests();
        assert!(leases.remove_expired("dies").await.unwrap());
        one_bulk("a removal");

        let mut in_time = false;
        for attempt in 0..ATTEMPTS {
            let keys = (0..20).map(|number| format!("{attempt} {number}"));
            let set = leases.acquire_all(keys, LONG).await.unwrap();
            one_bulk("a set of free keys");
            let start = Instant::now();
            set.release().await.unwrap();
            // On a slow machine the batch is sent again, one release at a time.
            in_time = start.elapsed() < OVERDUE;
            if in_time {
                one_bulk("the release of a set");
                break;
            }
            proxy.http_requests();
        }
        assert!(in_time, "no release was quick enough to tell");

        let reader = ask().shared();
        granted(&store, &reader).await;
        one_bulk("a shared acquire");
        granted(&store, &ask().shared().reentrant().note("again")).await;
        one_bulk("another beside it");
        store.acquire(&ask().permits(1, 4).unwrap()).await.unwrap();
        one_bulk("an attempt for permits");
        let upgrade = ConvertRequest::upgrade(reader.key.clone(), reader.lease);
        store.convert(&upgrade).await.unwrap();
        one_bulk("a conversion");
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

/// The number of leases that are kept alive: too many for one request.
const KEPT: usize = 2_000;
/// There is one request for each thousand leases, and some for leases that are not in step.
const ENOUGH: usize = 6;
/// The ttls in seconds. A machine that renews too late for one ttl may be quick enough for the next.
const TTLS: [u64; 5] = [12, 24, 48, 96, 192];
const PERIODS: usize = 6;
/// How many acquires are under way at the same time.
const AT_ONCE: usize = 64;

/// Renewals must be sent in batches. On a machine that stands still now and then, one period may cost more requests
/// than batches need, but without batches every period does. If no period costs few enough, an answer, or a look of the
/// test at the leases, must have been too slow for the ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_kept_leases_cost_a_handful_of_requests_a_period() {
    let keep = async |engine| {
        let mut ttls = TTLS.map(Duration::from_secs).into_iter().peekable();
        while let Some(ttl) = ttls.next() {
            let periods = Periods::of(engine, ttl).await;
            println!("{engine:?}: {KEPT} leases of {ttl:?}: {periods:?}");
            match periods.end {
                End::Few => return,
                _ if ttls.peek().is_none() => {}
                // If an answer takes longer, fewer leases go together, and the last of them may be sent too late.
                End::Many | End::Lost if periods.slowest > ttl / 12 => continue,
                _ => {}
            }
            panic!("{engine:?}: no period of {ttl:?} cost {ENOUGH} requests: {periods:?}");
        }
    };
    join_all(BOTH.map(keep)).await;
}

/// How many requests the renewals cost in each period, until one was cheap enough or all attempts were used up.
#[derive(Debug)]
struct Periods {
    costs: Vec<usize>,
    end: End,
    /// The longest time that an answer took, or that a look at the leases was late.
    slowest: Duration,
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// A period was cheap enough.
    Few,
    /// No period was cheap enough.
    Many,
    /// A lease was not granted or not renewed in time.
    Lost,
}

impl Periods {
    async fn of(engine: Engine, ttl: Duration) -> Self {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let store = Timed::new(fixture.store_at(&format!("http://{}", proxy.address)));
        let leases = leases(Layered(store.clone()));
        let acquire = |number| {
            let acquire = leases.acquire(format!("key {number}"), ttl);
            acquire.keep_alive().into_future()
        };
        let acquires = stream::iter((0..KEPT).map(acquire)).buffer_unordered(AT_ONCE);
        let acquired: Result<Vec<Lease>, Error> = acquires.try_collect().await;
        let mut periods = Self {
            costs: Vec::new(),
            end: End::Lost,
            slowest: Duration::ZERO,
        };
        match acquired {
            Ok(kept) => {
                periods.end = periods.count(&proxy, &kept).await;
                // Some may be lost.
                kept.into_iter().for_each(|lease| drop(lease.detach()));
            }
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        periods.slowest = periods.slowest.max(store.longest());
        periods
    }

    async fn count(&mut self, proxy: &Proxy, kept: &[Lease]) -> End {
        let deadlines = || kept.iter().map(Lease::deadline).collect::<Vec<_>>();
        let mut seen = deadlines();
        let (mut all_sent, mut all_renewed) = (proxy.http_requests().len(), 0);
        while self.costs.len() < PERIODS {
            let (mut sent, mut renewed) = (0, 0);
            while renewed < KEPT {
                let start = Instant::now();
                sleep(Duration::from_millis(10)).await;
                let now = deadlines();
                renewed += now
                    .iter()
                    .zip(&seen)
                    .filter(|(now, seen)| now > seen)
                    .count();
                seen = now;
                // The order matters: renewals that the look has seen were sent before.
                sent += proxy.http_requests().len();
                self.slowest = self.slowest.max(start.elapsed());
                if let Some(lost) = kept.iter().find(|lease| !lease.is_live()) {
                    was_too_late(&lost.lost().await);
                    return End::Lost;
                }
            }
            (all_sent, all_renewed) = (all_sent + sent, all_renewed + renewed);
            assert!(all_sent * MAX_RENEWALS >= all_renewed, "not all are seen");
            let cost = sent * KEPT / renewed;
            self.costs.push(cost);
            if cost <= ENOUGH {
                return End::Few;
            }
        }
        End::Many
    }
}

/// Only this test uses these keys, and it evicts nobody, so a lease can only be lost because its time was over.
fn was_too_late(reason: &LossReason) {
    let late = match reason {
        LossReason::Expired => true,
        LossReason::Unreachable(error) => error.is_retryable(),
        _ => false,
    };
    assert!(late, "a lease was lost: {reason:?}");
}

/// An answer that writes nothing comes from the primary alone, and a primary that is cut off would go on giving it. So
/// a repeated grant is written again, and the replicas then have it too.
#[tokio::test]
async fn a_repeated_grant_is_written_again_and_a_refusal_is_not() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (store, request) = (fixture.store(), ask());
        let written = async || number(&fixture).await;
        let first = granted(&store, &request).await;
        let before = written().await;
        // The clock of the node advances.
        sleep(Duration::from_millis(50)).await;
        let again = granted(&store, &request).await;
        assert_eq!(written().await, before + 1);
        assert_eq!(
            (first.fence, first.expires_at),
            (again.fence, again.expires_at)
        );
        // The time is that of the second answer, so less of the lease is left.
        assert!(again.expires_in() < first.expires_in());

        let mut other = request.clone();
        other.lease = LeaseId::random();
        store.acquire(&other).await.unwrap();
        assert_eq!(written().await, before + 1);
    }
}

/// The key has a second holder, which is a reentrant lease of the same owner.
#[tokio::test]
async fn a_repeated_grant_of_one_of_several_leases_is_written_again() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (store, request) = (fixture.store(), ask());
        let first = granted(&store, &request).await;
        granted(&store, &ask().reentrant()).await;
        let before = number(&fixture).await;
        let again = granted(&store, &request).await;
        assert_eq!(number(&fixture).await, before + 1);
        assert_eq!(first.fence, again.fence);
    }
}

/// The reason is that of the first test.
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
        // An evicted lease is no holder any more, whichever it was.
        store.evict(&key).await.unwrap();
        for conversion in [&upgrade, &downgrade] {
            let lost = store.convert(conversion).await.unwrap();
            assert_eq!(lost, ConvertAnswer::TakenOver);
        }
        assert_eq!(number(&fixture).await, before + 1);
    }
}

/// The sequence number of the newest change of the document of `key`.
async fn number(fixture: &Fixture) -> i64 {
    let path = format!("{}/_doc/key", fixture.alias);
    let document = fixture.ask(Get, &path, Value::Null).await;
    document["_seq_no"].as_i64().unwrap()
}

/// The stores rely on this, and neither engine's documentation promises it: the answer to an update that changes
/// nothing shows the document as the script left it, if the request filters for it.
#[tokio::test]
async fn an_answer_that_changes_nothing_shows_what_the_script_added() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        leases(fixture.store())
            .acquire("key", LONG)
            .await
            .unwrap()
            .detach()
            .unwrap();
        let path = format!("{}/_bulk", fixture.alias);
        let script = "ctx._source.now = 7; ctx.op = 'none'";
        for (shown, now) in [
            (json!({ "includes": ["*"] }), json!(7)),
            (json!(true), json!(null)),
        ] {
            let action = json!({ "update": { "_id": "key" } });
            let change = json!({ "script": script, "_source": shown });
            let answer = fixture
                .ask_lines(&path, format!("{action}\n{change}\n"))
                .await;
            let answer = &answer["items"][0]["update"];
            assert_eq!(answer["result"], "noop", "{answer}");
            assert_eq!(answer["get"]["_source"]["now"], now, "{answer}");
        }
    }
}

/// The index counts the writes to it, and has a number for every change.
#[tokio::test]
async fn fifty_losing_attempts_write_nothing() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let mut theirs = ask().permits(2, 4).unwrap();
        theirs.owner = "they".into();
        // Each key has one holder, and attempts that are refused beside it.
        for (number, (holder, attempt)) in [
            (ask(), ask()),
            (ask(), ask().shared()),
            (ask().shared(), ask()),
            (ask().shared(), ask().permits(1, 4).unwrap()),
            (theirs.clone(), ask().permits(3, 4).unwrap()),
            (theirs, ask().permits(3, 4).unwrap().reentrant()),
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
            // Only later versions count the updates without a change in a bulk. No update counts as anything else.
            let counted = after.1 - noops;
            assert!(counted == 50 || counted == 0, "{counted} of 50");
        }
    }
}

/// How often the index was written to, and how many updates of it changed nothing.
async fn indexed(fixture: &Fixture) -> (i64, i64) {
    let path = format!("{}/_stats/indexing", fixture.alias);
    let stats = fixture.ask(Get, &path, Value::Null).await;
    let indexing = &stats["_all"]["primaries"]["indexing"];
    (
        indexing["index_total"].as_i64().unwrap(),
        indexing["noop_update_total"].as_i64().unwrap(),
    )
}
