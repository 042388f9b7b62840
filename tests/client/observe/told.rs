//! Spans and events.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::{
    Error, Key, Leases, LockState, MemoryStore, PermitsLeft, SqliteStore, Store,
    store::{
        AcquireAnswer, AcquireRequest, Cause, ConvertAnswer, ConvertRequest, Eviction,
        GiveBackRequest, LeaseId, ListRequest, LookAnswer, LookRequest, Page, PermitAnswer,
        PermitRequest, Quota, ReleaseAnswer, ReleaseRequest, RenewAnswers, RenewRequest,
    },
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Duration, sleep, timeout};

use super::journal::{Journal, event, events, span};
use crate::{Fate, MOMENT, TTL, setup};

fn level(entry: &Value) -> &str {
    entry["level"].as_str().unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_acquire_and_its_release() {
    let (store, _) = setup();
    let leases = Leases::builder(store).owner("pod-3").build();
    let holder = leases.acquire("report:42", TTL).await.unwrap();
    let journal = Journal::new();
    let waiter = tokio::spawn(leases.acquire("report:42", TTL).shared().into_future());
    sleep(MOMENT).await;
    let entries = journal.entries();
    assert_eq!(
        event(&entries, "waits for the key")["fields"]["key"],
        "report:42"
    );
    let fence = holder.fence();
    holder.release().await.unwrap();
    let lease = waiter.await.unwrap().unwrap();

    let entries = journal.entries();
    let released = event(&entries, "released");
    assert_eq!(level(&released), "DEBUG");
    assert_eq!(released["fields"]["key"], "report:42");
    assert_eq!(released["fields"]["by"], "caller");
    // The lease has all fences of its block, and the guard the first.
    assert!(released["fields"]["fence"].as_i64() >= Some(fence.get()));
    assert_eq!(span(&entries, "leasehold.release")["key"], "report:42");

    let acquired = event(&entries, "acquired");
    assert_eq!(level(&acquired), "DEBUG");
    let acquire = span(&entries, "leasehold.acquire");
    for fields in [&acquired["fields"], &acquire] {
        assert_eq!(fields["key"], "report:42");
        assert_eq!(fields["mode"], "shared");
        assert_eq!(fields["owner"], "pod-3");
        assert_eq!(fields["ttl"], "30s");
        assert_eq!(fields["outcome"], "granted");
        assert_eq!(fields["waited"], "10ms");
        assert_eq!(fields["lease"], lease.id().to_string());
        assert_eq!(fields["fence"], lease.fence().get());
    }
    assert_eq!(acquired["span"]["name"], "leasehold.acquire");
}

#[tokio::test(start_paused = true)]
async fn acquires_in_vain() {
    let (_, leases) = setup();
    let holder = leases.acquire("key", TTL).owner("pod-1").await.unwrap();
    let journal = Journal::new();
    drop(leases.try_acquire("key", TTL).await.unwrap());
    let entries = journal.entries();
    let held = event(&entries, "not acquired");
    assert_eq!(held["fields"]["outcome"], "held");
    assert_eq!(held["fields"]["holder"], "pod-1");
    assert_eq!(span(&entries, "leasehold.try_acquire")["outcome"], "held");

    leases
        .acquire("key", TTL)
        .wait_for(MOMENT)
        .await
        .unwrap_err();
    let entries = journal.entries();
    let late = event(&entries, "not acquired");
    assert_eq!(late["fields"]["outcome"], "timed_out");
    assert_eq!(late["fields"]["key"], "key");
    assert_eq!(late["fields"]["holder"], "pod-1");

    let cancelled = leases.acquire("key", TTL).into_future();
    assert!(timeout(MOMENT, cancelled).await.is_err());
    let entries = journal.entries();
    let gone = event(&entries, "not acquired");
    assert_eq!(gone["fields"]["outcome"], "cancelled");
    assert_eq!(gone["fields"]["key"], "key");
    assert_eq!(gone["fields"]["waited"], "10ms");

    drop(holder);
    let both = leases.acquire_all(["a", "b"], TTL).await.unwrap();
    let entries = journal.entries();
    assert_eq!(events(&entries, "acquired").len(), 2);
    let all = span(&entries, "leasehold.acquire_all");
    assert_eq!(
        (&all["keys"], &all["outcome"]),
        (&2.into(), &"granted".into())
    );
    drop(both);
}

/// The events of a background task name the lease.
#[tokio::test(start_paused = true)]
async fn in_the_background() {
    let (store, leases) = setup();
    let journal = Journal::new();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    let id = lease.id().to_string();
    sleep(TTL / 3 + MOMENT).await;
    let entries = journal.entries();
    let renewed = event(&entries, "renewed");
    assert_eq!(level(&renewed), "TRACE");
    let fields = &renewed["fields"];
    assert_eq!(
        (&fields["key"], &fields["lease"]),
        (&"key".into(), &id.as_str().into())
    );

    store.next([Fate::NotSent; 100]);
    sleep(TTL * 2).await;
    let entries = journal.entries();
    assert!(!events(&entries, "not renewed").is_empty());
    let risk = event(&entries, "a lease is at risk");
    let lost = event(&entries, "a lease is lost");
    for warning in [&risk, &lost] {
        assert_eq!(level(warning), "WARN");
        assert_eq!(warning["fields"]["key"], "key");
        assert_eq!(warning["fields"]["lease"], id.as_str());
    }
    assert_eq!(lost["fields"]["reason"], "unreachable");
    let at = |entry: &Value| entries.iter().position(|other| other == entry);
    assert!(at(&risk) < at(&lost), "the warning comes first");

    drop(lease);
    sleep(TTL * 2).await;
    let entries = journal.entries();
    assert!(
        events(&entries, "a lease is lost").is_empty(),
        "it was told"
    );
    let stuck = event(&entries, "could not release");
    assert_eq!(level(&stuck), "WARN");
    assert_eq!(
        (&stuck["fields"]["key"], &stuck["fields"]["by"]),
        (&"key".into(), &"drop".into())
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_recovers_may_be_at_risk_again() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    let journal = Journal::new();
    for _ in 0..2 {
        store.next([Fate::NotSent; 100]);
        sleep(TTL * 5 / 6).await;
        store.fates_now([]);
        assert!(lease.is_live(), "the control");
        lease.renew().await.unwrap();
        event(&journal.entries(), "a lease is at risk");
    }
}

#[tokio::test(start_paused = true)]
async fn conversions_and_tickets() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).shared().await.unwrap();
    let journal = Journal::new();
    lease.upgrade().await.map(drop).unwrap();
    let entries = journal.entries();
    let converted = event(&entries, "asked for another mode");
    let fields = &converted["fields"];
    assert_eq!(
        (&fields["mode"], &fields["outcome"]),
        (&"exclusive".into(), &"granted".into())
    );
    assert_eq!(fields["fence"], lease.fence().get());
    assert_eq!(span(&entries, "leasehold.upgrade")["key"], "key");

    let ticket = lease.into_ticket();
    event(&journal.entries(), "detached");
    drop(leases.resume(&ticket).await.unwrap());
    let entries = journal.entries();
    assert_eq!(event(&entries, "resumed")["fields"]["outcome"], "granted");
    assert_eq!(span(&entries, "leasehold.resume")["key"], "key");
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_does() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    let journal = Journal::new();
    leases.inspect("key").await.unwrap();
    let entries = journal.entries();
    assert_eq!(level(&event(&entries, "asked the store")), "DEBUG");
    assert_eq!(span(&entries, "leasehold.inspect")["outcome"], "ok");

    leases.limiter("partner", 1, TTL).peek().await.unwrap();
    let peeked = span(&journal.entries(), "leasehold.peek");
    assert_eq!(
        (&peeked["outcome"], &peeked["key"]),
        (&"ok".into(), &"partner".into())
    );

    leases.evict("key").await.unwrap();
    leases.evict("nobody's").await.unwrap();
    let evicted = event(&journal.entries(), "evicted");
    assert_eq!(level(&evicted), "INFO");
    assert_eq!(
        (&evicted["fields"]["key"], &evicted["fields"]["holders"]),
        (&"key".into(), &1.into())
    );
    drop(lease);

    leases.acquire("old", TTL).await.unwrap().detach().unwrap();
    sleep(TTL * 2).await;
    journal.entries();
    assert!(leases.remove_expired("old").await.unwrap());
    assert_eq!(level(&event(&journal.entries(), "removed")), "INFO");
    leases.purge(TTL).await.unwrap();
    assert_eq!(level(&event(&journal.entries(), "purged")), "INFO");
    leases.release_owner("pod-1").await.unwrap();
    assert_eq!(
        event(&journal.entries(), "released all of")["fields"]["owner"],
        "pod-1"
    );
    leases.limiter("partner", 1, TTL).permit().await.unwrap();
    let entries = journal.entries();
    assert_eq!(
        event(&entries, "asked for permits")["fields"]["outcome"],
        "granted"
    );
    assert_eq!(span(&entries, "leasehold.limiter")["key"], "partner");
}

const PASSWORD: &str = "correct horse";

/// A store whose driver puts the password of its connection into every error.
#[derive(Clone, Debug, Default)]
struct Indiscreet {
    memory: MemoryStore,
    fails: Arc<Mutex<bool>>,
}

impl Indiscreet {
    fn fate(&self) -> Result<(), Error> {
        let source = Cause::text(format!("mongodb://app:{PASSWORD}@db: broken"));
        if *self.fails.lock() {
            Err(Error::Unreachable {
                store: "the store",
                source,
            })
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl Store for Indiscreet {
    fn clock_margin(&self) -> Duration {
        Duration::ZERO
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.fate()?;
        self.memory.acquire(request).await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        self.fate()?;
        self.memory.leave(key, waiter).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.fate()?;
        self.memory.renew(requests).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.fate()?;
        self.memory.convert(request).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.fate()?;
        self.memory.release(request).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        self.fate()?;
        self.memory.inspect(key).await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        self.fate()?;
        self.memory.look(leases).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.fate()?;
        self.memory.list(request).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.fate()?;
        self.memory.evict(key).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        self.fate()?;
        self.memory.remove_expired(key).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        self.fate()?;
        self.memory.permit(request).await
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        self.fate()?;
        self.memory.peek(key, quota).await
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        self.fate()?;
        self.memory.give_back(request).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.fate()?;
        self.memory.purge(retention).await
    }

    async fn freed(&self) -> Result<Option<leasehold::store::FreedKeys>, Error> {
        self.fate()?;
        Ok(None)
    }

    async fn awaited(&self) -> Result<Option<leasehold::store::AwaitedKeys>, Error> {
        self.fate()?;
        Ok(None)
    }
}

#[tokio::test(start_paused = true)]
async fn no_event_holds_a_password() {
    let journal = Journal::new();
    let store = Indiscreet::default();
    let leases = Leases::new(store.clone());
    let kept = leases.acquire("kept", TTL).keep_alive().await.unwrap();
    let shared = leases.acquire("shared", TTL * 10).shared().await.unwrap();
    let dropped = leases.acquire("dropped", TTL).await.unwrap();
    let ticket = leases.acquire("moved", TTL).await.unwrap().into_ticket();
    let waiter = tokio::spawn(leases.acquire("kept", TTL).into_future());
    sleep(MOMENT).await;
    *store.fails.lock() = true;
    drop(dropped);
    let error = leases.try_acquire("key", TTL).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.to_string().contains(PASSWORD), "the control");
    leases
        .acquire_all(["a", "b"], TTL)
        .wait_for(MOMENT)
        .await
        .unwrap_err();
    shared.upgrade().await.unwrap_err();
    shared.renew().await.unwrap_err();
    leases.resume(&ticket).await.unwrap_err();
    leases.inspect("key").await.unwrap_err();
    leases.evict("key").await.unwrap_err();
    leases.remove_expired("key").await.unwrap_err();
    leases.purge(TTL).await.unwrap_err();
    leases.release_owner("pod").await.unwrap_err();
    leases
        .limiter("key", 1, TTL)
        .try_permit()
        .await
        .unwrap_err();
    let limiter = leases.limiter("partner", 1, TTL);
    limiter.peek().await.unwrap_err();
    kept.lost().await;
    shared.release().await.unwrap_err();
    sleep(TTL * 2).await;
    waiter.abort();
    leases.close().await;

    let text = journal.text();
    let told = [
        "acquire", "renew", "convert", "release", "inspect", "list", "evict", "permit", "peek",
        "purge",
    ];
    for operation in told {
        let field = format!(r#""operation":"{operation}""#);
        assert!(text.contains(&field), "no word of {operation}");
    }
    for message in [
        "not renewed",
        "at risk",
        "is lost",
        "could not release",
        "not acquired",
    ] {
        assert!(text.contains(message), "no word of {message}");
    }
    let leak = |line: &&str| line.contains(PASSWORD) || line.contains("broken");
    assert_eq!(text.lines().find(leak), None);
}

#[tokio::test]
async fn a_file_that_is_gone_is_a_failure_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("locks.db")).await;
    let leases = Leases::new(store.unwrap());
    folder.close().unwrap();
    let journal = Journal::new();
    assert!(leases.inspect("key").await.is_err());
    let told = event(&journal.entries(), "a call to the store failed");
    assert_eq!(told["fields"]["operation"], "inspect");
}
