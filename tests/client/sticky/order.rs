//! The order of the tasks that wait for a key that stays, also when its lease goes back to the store.

use std::{
    future::{Future, IntoFuture},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use leasehold::{
    Error, Lease, Leases,
    jobs::{Once, Tick},
};
use parking_lot::Mutex;
use tokio::{
    spawn,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{IDLE, plain, sticky};
use crate::{Fate, LIMIT, MOMENT, TTL, setup};

/// The numbers of the tasks, in the order in which they were granted the key.
type Order = Arc<Mutex<Vec<u32>>>;

/// A task with this number, which acquires the key, and releases it a moment later.
fn task(
    order: &Order,
    number: u32,
    acquire: impl Future<Output = Result<Lease, Error>> + Send + 'static,
) -> JoinHandle<()> {
    let order = order.clone();
    spawn(async move {
        let lease = acquire.await.unwrap();
        order.lock().push(number);
        sleep(MOMENT).await;
        lease.release().await.unwrap();
    })
}

async fn in_order(tasks: Vec<JoinHandle<()>>, order: &Order) -> Vec<u32> {
    let all = timeout(LIMIT, join_all(tasks)).await;
    for ended in all.expect("they wait for ever") {
        ended.unwrap();
    }
    std::mem::take(&mut order.lock())
}

#[tokio::test(start_paused = true)]
async fn tasks_stay_in_their_order_when_the_lease_goes_back_for_the_first_of_them() {
    for late in [MOMENT, Duration::from_millis(500)] {
        let (store, leases) = setup();
        let first = sticky(&leases).await;
        let order = Order::default();
        let mut tasks = Vec::new();
        for number in 0..20 {
            let ttl = if number == 0 { 10 * TTL } else { TTL };
            let acquire = leases.acquire("key", ttl).sticky(IDLE).into_future();
            tasks.push(task(&order, number, acquire));
            sleep(Duration::from_millis(1)).await;
        }
        store.next_of("release", Fate::AnswerLate(late));
        first.release().await.unwrap();
        assert_eq!(
            in_order(tasks, &order).await,
            Vec::from_iter(0..20),
            "after {late:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_needs_the_document_passes_no_task_that_waits_in_memory() {
    let (_, leases) = setup();
    let first = sticky(&leases).await;
    let order = Order::default();
    let mut tasks = Vec::new();
    for number in 0..10 {
        let acquire = leases.acquire("key", TTL);
        let acquire = if number == 5 {
            acquire.note("another")
        } else {
            acquire
        };
        tasks.push(task(&order, number, acquire.into_future()));
        sleep(Duration::from_millis(1)).await;
    }
    first.release().await.unwrap();
    assert_eq!(in_order(tasks, &order).await, Vec::from_iter(0..10));
}

#[tokio::test(start_paused = true)]
async fn an_acquire_for_a_tick_passes_no_task_that_waits_in_memory() {
    let (_, leases) = setup();
    let first = sticky(&leases).await;
    let order = Order::default();
    let mut tasks = Vec::new();
    for number in 0..10 {
        if number == 5 {
            let (leases, order) = (leases.clone(), order.clone());
            tasks.push(spawn(async move {
                let once = leases.once("key", Tick::counter(1)).wait_for(LIMIT);
                let once = once.run(async |_| {
                    order.lock().push(5);
                    Ok::<_, Error>(())
                });
                assert_eq!(once.await.unwrap(), Once::Ran(()));
            }));
        } else {
            let acquire = leases.acquire("key", TTL);
            tasks.push(task(&order, number, acquire.into_future()));
        }
        sleep(Duration::from_millis(1)).await;
    }
    first.release().await.unwrap();
    assert_eq!(in_order(tasks, &order).await, Vec::from_iter(0..10));
}

#[tokio::test(start_paused = true)]
async fn a_task_that_needs_the_document_gives_up_in_time() {
    let (_, leases) = setup();
    let first = sticky(&leases).await;
    let waiting = spawn(leases.acquire("key", TTL).into_future());
    sleep(MOMENT).await;
    let late = leases.acquire("key", TTL).note("another").wait_for(MOMENT);
    let late = timeout(2 * MOMENT, late).await.unwrap();
    assert!(matches!(late, Err(Error::WaitTimedOut { .. })), "{late:?}");
    first.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    plain(&leases).await.release().await.unwrap();
}

/// Each task that is granted the key makes it stay, with too short a ttl for the long lease.
#[tokio::test(start_paused = true)]
async fn a_long_lease_does_not_wait_for_ever_beside_short_ones() {
    let (store, leases) = setup();
    store.next(vec![Fate::AnswerLate(Duration::from_millis(200)); 10_000]);
    let works = async |leases: Leases| {
        loop {
            let lease = leases.acquire("key", TTL).sticky(IDLE).await.unwrap();
            sleep(Duration::from_millis(100)).await;
            lease.release().await.unwrap();
        }
    };
    let tasks = [(); 3].map(|()| spawn(works(leases.clone())));
    sleep(Duration::from_secs(1)).await;
    let long = leases.acquire("key", 10 * TTL).sticky(IDLE);
    let long = timeout(TTL, long).await;
    tasks.iter().for_each(JoinHandle::abort);
    assert!(long.is_ok(), "it waits for ever");
}
