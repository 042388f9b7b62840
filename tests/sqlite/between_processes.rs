//! Several operating-system processes on one file.

use std::{fs, path::Path, time::Duration};

use futures::future::join_all;
use leasehold::{Attempt, Leases, SqliteStore};
use leasehold_tests::{
    late_conversions,
    processes::{self, Place, Process, limits},
};
use tokio::time::{Instant, sleep};

use super::{LONG, copies, crashes, other_users, path, store_at};

/// How long an opening waits for other processes that write.
const OPENING: Duration = Duration::from_secs(5);
/// How often an opening may take longer than that, on a machine that stands still now and then.
const ATTEMPTS: usize = 5;
/// Longer than the other processes take to start. It only ends a process whose gate is never opened.
const PATIENCE: Duration = Duration::from_secs(300);

/// Not a test of its own: this is the work of a process that a test has started. Without a task it does nothing.
#[tokio::test]
async fn the_work_of_a_process() {
    if let Some((task, _, path, gate)) = processes::task() {
        let path = Path::new(&path);
        match task.as_str() {
            "open" => open_at_the_gate(path, Path::new(&gate)).await,
            "copy" => copies::work(path, Path::new(&gate)).await,
            "look" => other_users::look(path).await,
            "grant" => other_users::grant(path).await,
            "churn" => crashes::churn(store_at(path).await).await,
            #[cfg(target_os = "linux")]
            task if task.starts_with("record ") => {
                let seed = task["record ".len()..].parse().unwrap();
                super::lost_writes::workload::work(path, Path::new(&gate), seed).await;
            }
            task => processes::work(task, store_at(path).await).await,
        }
    }
}

pub fn place(path: &Path) -> Place {
    Place {
        kind: "sqlite",
        address: path.to_str().unwrap().to_owned(),
        name: String::new(),
    }
}

/// Waits until there is a file at the path of the gate, which means that all processes are there.
pub async fn wait_for_the_gate(gate: &Path) {
    println!("\ntold waiting 0 0");
    let waits = Instant::now();
    while !gate.exists() {
        assert!(waits.elapsed() < PATIENCE, "the gate stays closed");
        sleep(Duration::from_micros(100)).await;
    }
}

async fn open_at_the_gate(path: &Path, gate: &Path) {
    wait_for_the_gate(gate).await;
    let mut attempts = 0;
    let store = loop {
        attempts += 1;
        let start = Instant::now();
        match SqliteStore::open(path).await {
            // This happens only if the others took longer than an opening waits for them.
            Err(error) if error.is_retryable() && attempts < ATTEMPTS => {
                let took = start.elapsed();
                assert!(took >= OPENING * 9 / 10, "{error:?} after {took:?}");
            }
            Err(error) => panic!("{error:?} at attempt {attempts}"),
            Ok(opened) => break opened,
        }
    };
    let attempt = Leases::new(store).try_acquire("key", LONG).await.unwrap();
    let taken = matches!(attempt, Attempt::Acquired(_));
    if let Attempt::Acquired(lease) = attempt {
        lease.detach().unwrap();
    }
    println!("\ntold taken {} 0", i64::from(taken));
}

/// This happens when a host starts all of its services.
#[tokio::test]
async fn many_open_a_file_that_is_not_there_at_the_same_moment() {
    for _ in 0..10 {
        let gate = path();
        let place = Place {
            name: gate.to_str().unwrap().to_owned(),
            ..place(&path())
        };
        let mut all: Vec<_> = (0..8).map(|_| Process::start(&place, "open")).collect();
        for one in &mut all {
            assert_eq!(one.next().await.0, "waiting");
        }
        fs::write(&gate, "").unwrap();
        let mut taken = 0;
        for one in &mut all {
            taken += one.next().await.1;
        }
        assert_eq!(taken, 1);
    }
}

#[tokio::test]
async fn a_process_takes_over_from_one_that_was_killed() {
    processes::takeover_from_a_killed_process(&place(&path())).await;
}

#[tokio::test]
async fn of_processes_that_race_for_a_key_one_wins() {
    processes::race_of_processes(&place(&path())).await;
}

#[tokio::test]
async fn processes_that_are_killed_while_they_wait_block_nobody() {
    let path = path();
    processes::waiting_processes_are_killed(&place(&path), store_at(&path).await).await;
}

#[tokio::test]
async fn processes_that_stand_still_while_they_wait_block_nobody() {
    let path = path();
    processes::waiting_processes_are_stopped(&place(&path), store_at(&path).await).await;
}

#[tokio::test]
async fn the_tasks_of_a_process_have_one_place() {
    processes::the_tasks_of_a_process_have_one_place(store_at(&path()).await).await;
}

#[tokio::test]
async fn the_first_asks_once_a_second_behind_a_long_job() {
    let store = store_at(&path()).await;
    processes::the_first_asks_once_a_second_behind_a_long_job(store).await;
}

#[tokio::test]
async fn a_crowd_asks_seldom_behind_a_long_job() {
    let store = store_at(&path()).await;
    processes::a_crowd_asks_seldom_behind_a_long_job(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handoffs_within_a_process_have_a_bound() {
    processes::handoffs_within_a_process_have_a_bound(store_at(&path()).await).await;
}

#[tokio::test]
async fn waits_that_end_give_their_places_back() {
    processes::waits_that_end_give_their_places_back(store_at(&path()).await).await;
}

#[tokio::test]
async fn a_reader_comes_back_before_a_writer() {
    processes::a_reader_comes_back_before_a_writer(store_at(&path()).await).await;
}

#[tokio::test]
async fn an_owner_comes_before_those_who_wait_for_it() {
    processes::an_owner_comes_before_those_who_wait_for_it(store_at(&path()).await).await;
}

#[tokio::test]
async fn a_process_without_a_place_is_reported_and_woken_by_an_eviction() {
    let store = store_at(&path()).await;
    processes::a_process_without_a_place_is_reported_and_woken_by_an_eviction(store).await;
}

#[tokio::test]
async fn an_owner_without_a_place_asks_more_often_than_others() {
    let store = store_at(&path()).await;
    processes::an_owner_without_a_place_asks_more_often_than_others(store).await;
}

#[tokio::test]
async fn late_conversions_undo_no_later_ones() {
    late_conversions::late_conversions_undo_no_later_ones(store_at(&path()).await).await;
}

#[tokio::test]
async fn a_paused_process_learns_at_once_that_it_lost() {
    let path = path();
    processes::pause_past_the_ttl(&place(&path), store_at(&path).await).await;
}

/// The clocks of the processes are off, but the store goes by the clock of the file.
#[tokio::test]
async fn two_processes_with_clocks_of_their_own_keep_to_one_limit() {
    let calls = async |off| limits::calls_of_two_processes(&place(&path()), off).await;
    join_all([5, -5].map(calls)).await;
}

#[tokio::test]
async fn a_process_that_was_killed_costs_one_permit_at_the_most() {
    let path = path();
    limits::a_crash_costs_one_permit(&place(&path), store_at(&path).await).await;
}
