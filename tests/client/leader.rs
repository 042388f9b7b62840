//! Leader election among several candidates. Each client here stands for a process.

mod follower;

use std::{
    convert::Infallible,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{
    Error, Fence, Leases,
    jobs::{Leader, Term},
};
use parking_lot::Mutex;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{Fate, FlakyStore, MARGIN, MOMENT, TTL, flaky::News, is_free, until_free};

/// How late a waiter notices that a key is free, with a store that does not tell.
const NOTICED: Duration = Duration::from_secs(1);

/// The terms that have begun, by owner and fence, and how many of them still last.
#[derive(Clone, Default)]
struct Terms {
    begun: Arc<Mutex<Vec<(String, Fence)>>>,
    lasting: Arc<AtomicUsize>,
}

/// Counts a term as lasting until it is dropped, which happens when the work of the term is
/// dropped.
struct Lasting(Arc<AtomicUsize>);

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Terms {
    fn begin(&self, term: &Term) -> Lasting {
        let begun = (term.owner().to_owned(), term.fence());
        self.begun.lock().push(begun);
        self.lasting.fetch_add(1, Ordering::SeqCst);
        Lasting(self.lasting.clone())
    }

    fn owners(&self) -> Vec<String> {
        self.begun
            .lock()
            .iter()
            .map(|(owner, _)| owner.clone())
            .collect()
    }

    fn lasting(&self) -> usize {
        self.lasting.load(Ordering::SeqCst)
    }

    /// Waits until this many terms have begun.
    async fn until(&self, terms: usize) {
        eventually(|| self.begun.lock().len() >= terms).await;
    }
}

/// Waits until the condition is true, for 300 ttls of the paused clock at most.
async fn eventually(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TTL * 300, "it does not happen");
        sleep(MOMENT).await;
    }
}

fn process(store: &FlakyStore, owner: &str) -> Leases {
    Leases::builder(store.clone()).owner(owner).build()
}

fn leader(leases: &Leases) -> Leader {
    leases.leader("key", TTL)
}

/// Waits until a run has returned without an error.
async fn ended(running: JoinHandle<Result<(), Error>>) {
    let ended = timeout(TTL, running).await.expect("it goes on");
    ended.unwrap().unwrap();
}

/// A candidate that leads for as long as it can.
fn leads(leases: &Leases, terms: &Terms) -> JoinHandle<Result<(), Error>> {
    let (leader, terms) = (leader(leases), terms.clone());
    tokio::spawn(leader.run(async move |term: &Term| {
        let _lasting = terms.begin(term);
        pending::<Result<(), Infallible>>().await
    }))
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_others_wait() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    let clients = ["a", "b", "c"].map(|owner| process(&store, owner));
    for client in &clients {
        leads(client, &terms);
        sleep(MOMENT).await;
    }
    sleep(TTL * 10).await;
    assert_eq!(terms.owners(), ["a"]);
    assert_eq!(terms.lasting(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_loss_stops_the_work_and_another_leads_with_a_greater_fence() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    let (first, second) = (process(&store, "a"), process(&store, "b"));
    leads(&first, &terms);
    terms.until(1).await;
    leads(&second, &terms);
    sleep(MOMENT).await;
    second.evict("key").await.unwrap();
    terms.until(2).await;
    // The first leader learns of the eviction with its next renewal.
    sleep(TTL / 2).await;
    assert_eq!(terms.lasting(), 1);
    let begun = terms.begun.lock().clone();
    assert_eq!((&*begun[0].0, &*begun[1].0), ("a", "b"));
    assert!(begun[1].1 > begun[0].1, "{begun:?}");
    // The first one campaigns again, and leads when the second one has closed.
    second.close().await;
    terms.until(3).await;
    assert_eq!(terms.owners(), ["a", "b", "a"]);
}

#[tokio::test(start_paused = true)]
async fn without_the_store_the_work_stops_at_the_deadline_and_the_campaign_goes_on() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    let leases = process(&store, "a");
    let start = Instant::now();
    let running = leads(&leases, &terms);
    terms.until(1).await;
    store.next([Fate::NotSent; 1_000]);
    eventually(|| terms.lasting() == 0).await;
    assert!(start.elapsed() >= TTL - MARGIN);
    assert!(start.elapsed() <= TTL - MARGIN + MOMENT * 2);
    terms.until(2).await;
    assert!(!running.is_finished());
}

#[tokio::test(start_paused = true)]
async fn what_a_retry_cannot_mend_ends_the_campaign() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    store.next([Fate::Denied]);
    let denied = leads(&process(&store, "a"), &terms).await.unwrap();
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    let leases = process(&store, "a");
    let work = async |_: &Term| -> Result<(), Infallible> { panic!("it runs") };
    let invalid = leases.leader("", TTL).run(work).await;
    assert!(
        matches!(invalid, Err(Error::InvalidKey { .. })),
        "{invalid:?}"
    );
    let invalid = leader(&leases).max_hold(TTL / 2).run(work).await;
    assert!(
        matches!(invalid, Err(Error::InvalidMaxHold { .. })),
        "{invalid:?}"
    );
    let invalid = leader(&leases).owner("").run(work).await;
    assert!(
        matches!(invalid, Err(Error::InvalidOwner { .. })),
        "{invalid:?}"
    );
    assert_eq!(terms.owners().len(), 0);
}

/// A term ends when its work returns, or when its leader resigns.
#[tokio::test(start_paused = true)]
async fn a_term_that_ends_hands_over_to_those_who_wait() {
    for resigns in [true, false] {
        let (store, terms) = (FlakyStore::new(), Terms::default());
        let clients = ["a", "b"].map(|owner| process(&store, owner));
        for client in &clients {
            let (leader, terms) = (leader(client), terms.clone());
            tokio::spawn(leader.run(async move |term: &Term| {
                let _lasting = terms.begin(term);
                sleep(TTL).await;
                if resigns {
                    term.resign();
                    pending::<()>().await;
                }
                Ok::<_, Infallible>(())
            }));
            sleep(MOMENT).await;
        }
        let start = Instant::now();
        terms.until(5).await;
        assert_eq!(terms.owners(), ["a", "b", "a", "b", "a"]);
        assert!(
            start.elapsed() <= (TTL + NOTICED) * 4,
            "no ttl is waited for"
        );
        assert_eq!(terms.lasting(), 1);
    }
}

/// The work of each term hangs.
#[tokio::test(start_paused = true)]
async fn a_term_ends_with_its_maximum_hold_and_the_others_come_first() {
    for is_same_process in [true, false] {
        let (store, terms) = (FlakyStore::new(), Terms::default());
        let clients = ["a", "b"].map(|owner| process(&store, owner));
        let warned = Arc::new(AtomicUsize::new(0));
        for (client, owner) in clients.iter().zip(["a", "b"]) {
            let client = if is_same_process { &clients[0] } else { client };
            let leader = leader(client).owner(owner).max_hold(TTL * 3);
            let (terms, warned) = (terms.clone(), warned.clone());
            tokio::spawn(leader.run(async move |term: &Term| {
                let _lasting = terms.begin(term);
                let start = Instant::now();
                term.at_risk().await;
                assert_eq!(start.elapsed(), TTL * 3 - TTL / 3);
                warned.fetch_add(1, Ordering::SeqCst);
                pending::<Result<(), Infallible>>().await
            }));
            sleep(MOMENT).await;
        }
        let start = Instant::now();
        terms.until(5).await;
        assert_eq!(terms.owners(), ["a", "b", "a", "b", "a"]);
        assert!(
            start.elapsed() <= (TTL * 3 + NOTICED) * 4,
            "no ttl is waited for"
        );
        assert_eq!((terms.lasting(), warned.load(Ordering::SeqCst)), (1, 4));
    }
}

/// The next leader is a candidate of the same process, or one of another process with a store that
/// tells of free keys.
#[tokio::test(start_paused = true)]
async fn the_next_leader_takes_over_at_once() {
    for is_same_process in [true, false] {
        let (store, terms) = (FlakyStore::new(), Terms::default());
        store.set_news(News::Told);
        let first = process(&store, "a");
        let second = if is_same_process {
            first.clone()
        } else {
            process(&store, "b")
        };
        let resigns = Arc::new(tokio::sync::Notify::new());
        let (begun, resign) = (terms.clone(), resigns.clone());
        tokio::spawn(leader(&first).run(async move |term: &Term| {
            let _lasting = begun.begin(term);
            resign.notified().await;
            term.resign();
            pending::<Result<(), Infallible>>().await
        }));
        terms.until(1).await;
        leads(&second, &terms);
        sleep(TTL).await;
        let start = Instant::now();
        resigns.notify_one();
        if !is_same_process {
            until_free(&store).await;
            store.tell("key");
        }
        terms.until(2).await;
        assert!(start.elapsed() <= MOMENT * 2, "{:?}", start.elapsed());
        assert_eq!(terms.lasting(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_is_tried_again_after_pauses_that_grow() {
    let store = FlakyStore::new();
    let leases = process(&store, "a");
    let begun = Arc::new(Mutex::new(Vec::new()));
    let instants = begun.clone();
    let running = tokio::spawn(leader(&leases).run(async move |_: &Term| {
        let terms = {
            let mut instants = instants.lock();
            instants.push(Instant::now());
            instants.len()
        };
        match terms {
            4 => sleep(Duration::from_secs(60)).await,
            // If there were no pauses, the paused clock would never advance, and this stops the
            // loop.
            7.. => pending().await,
            _ => {}
        }
        Err::<(), _>("no")
    }));
    eventually(|| begun.lock().len() == 6).await;
    let begun = begun.lock().clone();
    let pauses: Vec<_> = begun.windows(2).map(|two| two[1] - two[0]).collect();
    // The fourth term lasts for a minute. After it the pauses are short again.
    for (pause, (after, longest)) in pauses.iter().zip([(0, 1), (0, 2), (0, 4), (60, 1), (0, 2)]) {
        let (after, longest) = (Duration::from_secs(after), Duration::from_secs(longest));
        assert!(*pause >= after + longest / 2, "{pauses:?}");
        assert!(*pause <= after + longest + MOMENT, "{pauses:?}");
    }
    // A close does not wait for the pause.
    sleep(MOMENT).await;
    let start = Instant::now();
    leases.close().await;
    ended(running).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn while_work_that_failed_pauses_another_leads() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    let (first, second) = (process(&store, "a"), process(&store, "b"));
    let begun = terms.clone();
    tokio::spawn(leader(&first).run(async move |term: &Term| {
        let _lasting = begun.begin(term);
        sleep(TTL).await;
        Err::<(), _>("no")
    }));
    terms.until(1).await;
    leads(&second, &terms);
    sleep(TTL * 3).await;
    assert_eq!(terms.owners(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_close_ends_the_run_and_releases() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    let (first, second) = (process(&store, "a"), process(&store, "b"));
    let leading = leads(&first, &terms);
    terms.until(1).await;
    let waiting = leads(&second, &terms);
    sleep(TTL).await;
    second.close().await;
    ended(waiting).await;
    assert!(!leading.is_finished());
    first.close().await;
    assert!(is_free(&store).await, "the close waits for the release");
    ended(leading).await;
    assert_eq!(terms.lasting(), 0);
    assert_eq!(terms.owners(), ["a"]);
    // A run that begins after the close ends at once.
    ended(leads(&first, &terms)).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_goes_on_and_the_lease_is_released() {
    let store = FlakyStore::new();
    let leases = process(&store, "a");
    let work = async |_: &Term| -> Result<(), Infallible> { panic!("the work went wrong") };
    let ended = tokio::spawn(leader(&leases).run(work)).await;
    assert!(ended.unwrap_err().is_panic());
    assert!(until_free(&store).await <= MOMENT);
}

#[tokio::test(start_paused = true)]
async fn a_campaign_that_is_dropped_stops_the_work_and_releases() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    let leases = process(&store, "a");
    let running = leads(&leases, &terms);
    terms.until(1).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_eq!(terms.lasting(), 0);
    assert!(until_free(&store).await <= MOMENT);
}

#[tokio::test(start_paused = true)]
async fn the_token_of_a_term_is_cancelled_with_it() {
    let store = FlakyStore::new();
    let leases = process(&store, "a");
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let given = tokens.clone();
    tokio::spawn(leader(&leases).run(async move |term: &Term| {
        let token = term.cancellation_token();
        assert!(!token.is_cancelled());
        given.lock().push(token);
        sleep(TTL).await;
        term.resign();
        pending::<Result<(), Infallible>>().await
    }));
    sleep(TTL * 3).await;
    let states: Vec<_> = tokens.lock().iter().map(|it| it.is_cancelled()).collect();
    assert_eq!(states, [true, true, false]);
}

/// If a failover undid the release, the key would be without a leader until the ttl is over.
#[tokio::test(start_paused = true)]
async fn the_release_of_a_leader_is_not_one_that_may_be_undone() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    for leads_on in [true, false] {
        let leases = process(&store, "a");
        store.undoable.lock().clear();
        if leads_on {
            leads(&leases, &terms);
            terms.until(1).await;
        } else {
            let lease = leases.acquire("key", TTL).await.unwrap();
            lease.release().await.unwrap();
        }
        leases.close().await;
        assert_eq!(*store.undoable.lock(), [!leads_on]);
    }
}
