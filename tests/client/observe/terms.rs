//! The metrics and events of leader terms and of followers.

use std::{convert::Infallible, future::pending};

use leasehold::{Leases, jobs::Term};
use tokio::time::{Duration, sleep};

use super::{
    journal::{Journal, event, events, span},
    meter::Meter,
};
use crate::{Fate, FlakyStore, MOMENT, TTL, setup};

/// The changes of the metrics of terms.
fn terms(meter: &Meter) -> Vec<(String, Vec<f64>)> {
    let moved = meter.moved().into_iter();
    moved
        .filter(|(name, _)| name.starts_with("term") || name.starts_with("leading"))
        .collect()
}

fn owned(moved: &[(&str, &[f64])]) -> Vec<(String, Vec<f64>)> {
    let owned = moved
        .iter()
        .map(|(name, by)| (name.to_string(), by.to_vec()));
    owned.collect()
}

#[tokio::test(start_paused = true)]
async fn a_term_from_its_begin_to_its_end() {
    let (_, leases) = setup();
    let (journal, meter) = (Journal::new(), Meter::new());
    let leader = leases.leader("key", TTL).owner("pod-3");
    let running = tokio::spawn(leader.run(async |_: &Term| {
        tracing::info!(target: "leasehold", "at work");
        sleep(TTL).await;
        Err::<(), _>("the disk is full")
    }));
    sleep(MOMENT).await;
    let entries = journal.entries();
    let begins = event(&entries, "a term begins");
    assert_eq!(begins["level"], "INFO");
    assert_eq!(begins["fields"]["owner"], "pod-3");
    assert_eq!(event(&entries, "at work")["span"]["name"], "leasehold.term");
    assert_eq!(terms(&meter), owned(&[("leading", &[1.0])]));

    sleep(TTL).await;
    let entries = journal.entries();
    let ends = event(&entries, "a term ends: its work failed");
    assert_eq!(ends["level"], "WARN");
    let term = span(&entries, "leasehold.term");
    for fields in [&ends["fields"], &term] {
        assert_eq!(fields["key"], "key");
        assert_eq!(fields["lease"], begins["fields"]["lease"]);
        assert_eq!(fields["fence"], begins["fields"]["fence"]);
        assert_eq!(fields["outcome"], "failed");
        assert_eq!(fields["lasted"], "30s");
    }
    assert_eq!(ends["fields"]["error"], "the disk is full");
    assert!(ends["fields"]["pause"].is_string());
    let ended = owned(&[
        ("leading", &[-1.0]),
        ("term_seconds outcome=failed", &[30.0]),
        ("terms_total outcome=failed", &[1.0]),
    ]);
    assert_eq!(terms(&meter), ended);
    leases.close().await;
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn how_terms_end() {
    let (meter, (_, leases)) = (Meter::new(), setup());
    let mut number = 0;
    let evictor = leases.clone();
    let running = tokio::spawn(leases.leader("key", TTL).run(async move |term: &Term| {
        number += 1;
        match number {
            1 => {}
            2 => term.resign(),
            _ => drop(evictor.evict("key").await),
        }
        if number > 1 {
            pending::<()>().await;
        }
        Ok::<_, Infallible>(())
    }));
    let ends = |outcome: &str| {
        let name = format!("terms_total outcome={outcome}");
        terms(&meter).iter().any(|(moved, _)| *moved == name)
    };
    sleep(TTL / 2).await;
    let moved = terms(&meter);
    for outcome in ["finished", "resigned", "lost"] {
        let name = format!("terms_total outcome={outcome}");
        assert!(
            moved.iter().any(|it| it.0 == name && it.1 == [1.0]),
            "{moved:?}"
        );
    }
    leases.close().await;
    running.await.unwrap().unwrap();
    assert!(ends("closed"));

    let work = async |_: &Term| pending::<Result<(), Infallible>>().await;
    let (_, leases) = setup();
    let running = tokio::spawn(leases.leader("key", TTL).run(work));
    sleep(MOMENT).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert!(ends("cancelled"));
    let work = async |_: &Term| -> Result<(), Infallible> { panic!("the work went wrong") };
    let running = tokio::spawn(leases.leader("key", TTL).run(work));
    assert!(running.await.unwrap_err().is_panic());
    assert!(ends("panicked"));
}

#[tokio::test(start_paused = true)]
async fn a_campaign_without_the_store() {
    let (store, leases) = setup();
    store.next([Fate::NotSent; 1_000]);
    let journal = Journal::new();
    let work = async |_: &Term| pending::<Result<(), Infallible>>().await;
    tokio::spawn(leases.leader("key", TTL).run(work));
    sleep(TTL).await;
    let failed = events(&journal.entries(), "a campaign failed");
    assert!(!failed.is_empty());
    assert_eq!(failed[0]["level"], "WARN");
    assert_eq!(failed[0]["fields"]["key"], "key");
    assert!(failed[0]["fields"]["error"].is_string());
    assert!(failed[0]["fields"]["pause"].is_string());
}

#[tokio::test(start_paused = true)]
async fn what_a_follower_reads() {
    let store = FlakyStore::new();
    let (leases, follower) = (Leases::new(store.clone()), Leases::new(store.clone()));
    let lease = leases.acquire("key", TTL).owner("pod-3").await.unwrap();
    let journal = Journal::new();
    let leading = follower.leader("key", TTL).watch();
    sleep(MOMENT).await;
    let changed = event(&journal.entries(), "the leader has changed");
    assert_eq!(changed["level"], "DEBUG");
    assert_eq!(changed["fields"]["owner"], "pod-3");
    assert_eq!(changed["fields"]["fence"], lease.fence().get());

    store.fail_reads(true);
    sleep(Duration::from_secs(10)).await;
    let unknown = event(&journal.entries(), "who leads cannot be read");
    assert_eq!(unknown["level"], "WARN");
    assert_eq!(unknown["fields"]["key"], "key");
    store.fail_reads(false);
    lease.release().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let changed = event(&journal.entries(), "the leader has changed");
    assert!(changed["fields"].get("owner").is_none());
    drop(leading);
}
