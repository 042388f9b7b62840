//! The snippets of `docs/testing.md`, each as a test.

use std::time::Duration;

use leasehold::{
    Attempt, Error, Fence, Lease, Leases, LossReason, MemoryStore, WithError,
    testing::{Failure, Faults, FaultyStore},
};
use tokio::time::{Instant, advance, sleep};

const TTL: Duration = Duration::from_secs(30);

/// The code under test: it works on the report for five minutes, under a lease that is kept alive.
async fn report(leases: &Leases) -> Result<Fence, WithError<Error>> {
    let acquire = leases.acquire("report:42", TTL).wait_for(TTL * 2);
    let work = async |lease: &Lease| {
        sleep(TTL * 10).await;
        Ok(lease.fence())
    };
    acquire.with(work).await
}

#[tokio::test(start_paused = true)]
async fn the_work_keeps_its_lease() {
    let memory = MemoryStore::new();
    let (one, other) = (Leases::new(memory.clone()), Leases::new(memory));
    let look = async {
        sleep(TTL * 5).await; // long after the first ttl
        let attempt = other.try_acquire("report:42", TTL).await.unwrap();
        assert!(matches!(attempt, Attempt::Held(_)));
    };
    let (outcome, ()) = tokio::join!(report(&one), look);
    outcome.unwrap();
}

#[tokio::test(start_paused = true)]
async fn another_process_takes_over() {
    let memory = MemoryStore::new();
    let (one, other) = (Leases::new(memory.clone()), Leases::new(memory));
    // A process that dies: its lease is neither renewed nor released.
    let lease = one.acquire("report:42", TTL).await.unwrap();
    let (died, fence) = (Instant::now(), lease.fence());
    lease.detach().unwrap();
    let next = other.acquire("report:42", TTL).await.unwrap();
    assert!(died.elapsed() >= TTL);
    assert!(next.fence() > fence);
}

#[tokio::test(start_paused = true)]
async fn a_paused_process_stops_its_work() {
    let leases = Leases::new(MemoryStore::new());
    let work = async |_: &Lease| {
        advance(TTL * 2).await;
        sleep(TTL).await;
        Ok::<_, Error>(())
    };
    let error = leases
        .acquire("report:42", TTL)
        .with(work)
        .await
        .unwrap_err();
    let WithError::Lost { reason, .. } = error else {
        panic!("{error}");
    };
    assert!(matches!(reason, LossReason::Expired));
}

fn leases() -> (Leases, Faults) {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    (Leases::new(store), faults)
}

#[tokio::test(start_paused = true)]
async fn the_key_is_held() {
    let (leases, faults) = leases();
    faults.refuse_next(3);
    report(&leases).await.unwrap(); // the fourth request was granted

    faults.refuse_all();
    let error = report(&leases).await.unwrap_err();
    let WithError::NotAcquired(Error::WaitTimedOut { held, .. }) = error else {
        panic!("{error}");
    };
    assert_eq!(held.owner(), Faults::OTHER_OWNER);
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_lost() {
    let (leases, faults) = leases();
    let evict = async {
        sleep(TTL).await;
        faults.lose("report:42").unwrap();
    };
    let (outcome, ()) = tokio::join!(report(&leases), evict);
    let error = outcome.unwrap_err();
    let WithError::Lost { reason, .. } = error else {
        panic!("{error}");
    };
    assert!(matches!(reason, LossReason::TakenOver));
}

#[tokio::test(start_paused = true)]
async fn the_database_fails() {
    let (leases, faults) = leases();
    faults.calls().fail_next(2, Failure::Unreachable);
    report(&leases).await.unwrap(); // the third request was answered

    faults.calls().fail_all(Failure::Denied);
    let error = report(&leases).await.unwrap_err();
    assert!(matches!(
        error,
        WithError::NotAcquired(Error::Denied { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn only_the_renewals_fail() {
    let (leases, faults) = leases();
    faults.renewals().fail_all(Failure::Unreachable);
    let error = report(&leases).await.unwrap_err();
    let WithError::Lost { reason, .. } = error else {
        panic!("{error}");
    };
    assert!(matches!(reason, LossReason::Unreachable(_)));
}

#[tokio::test(start_paused = true)]
async fn the_database_hangs() {
    let (leases, faults) = leases();
    faults.calls().hang();
    let go_on = async {
        faults.calls().until_hanging().await;
        faults.calls().clear(); // the request is carried out now
    };
    let (outcome, ()) = tokio::join!(report(&leases), go_on);
    outcome.unwrap();

    faults.calls().hang();
    let error = report(&leases).await.unwrap_err();
    assert!(matches!(
        error,
        WithError::NotAcquired(Error::TimedOut { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn the_database_answers_late() {
    let (leases, faults) = leases();
    faults.calls().delay(Duration::from_secs(2));
    let start = Instant::now();
    report(&leases).await.unwrap();
    // The acquire and the release. The renewals were late too, and in time.
    assert!(start.elapsed() >= TTL * 10 + Duration::from_secs(4));
}

mod page {
    use std::fs;

    use leasehold_tests::project;

    /// Each Rust snippet of the page occurs in this file.
    #[test]
    fn each_snippet_is_tested() {
        let read = |path| fs::read_to_string(project().join(path)).unwrap();
        let page = read("docs/testing.md");
        let tested = read("tests/client/documented.rs");
        let snippets: Vec<_> = page.split("```rust\n").skip(1).collect();
        assert!(snippets.len() >= 10, "{}", snippets.len());
        for snippet in snippets {
            let (snippet, _) = snippet.split_once("```").unwrap();
            assert!(tested.contains(snippet), "not tested as it is:\n{snippet}");
        }
    }
}

/// An application imports everything, and uses the crates of the databases beside it.
#[test]
fn no_name_of_the_crate_hides_the_crate_of_a_database() {
    use leasehold::*;
    fn crates(_: mongodb::Client, _: elasticsearch::Elasticsearch, _: opensearch::OpenSearch) {}
    let _ = (crates, MemoryStore::new);
}

/// The test of `docs/first-hour.md`.
#[tokio::test(start_paused = true)]
async fn a_second_process_does_not_make_the_report() {
    async fn report(leases: &Leases) -> Result<bool, Error> {
        let attempt = leases.try_acquire("report:42", Duration::from_secs(30));
        let made = attempt.with(async |_lease| Ok::<_, Error>(())); // the work
        let made = made.await.map_err(leasehold::WithError::merge)?;
        Ok(matches!(made, Attempt::Acquired(())))
    }

    let store = MemoryStore::new();
    let (one, other) = (Leases::new(store.clone()), Leases::new(store));
    let lease = other
        .acquire("report:42", Duration::from_secs(30))
        .await
        .unwrap();
    assert!(!report(&one).await.unwrap());
    lease.release().await.unwrap();
    assert!(report(&one).await.unwrap());
}
