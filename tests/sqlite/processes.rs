//! Several operating-system processes on one file.

use std::path::Path;

use futures::future::join_all;
use leasehold::{Attempt, Leases};

use super::{
    LONG,
    common::processes::{self, Place, limits},
    crashes, path, store_at,
};

/// Not a test of its own: what a started process does. Without a task there is nothing to do.
#[tokio::test]
async fn the_work_of_a_process() {
    if let Some((task, _, path, _)) = processes::task() {
        let store = store_at(Path::new(&path)).await;
        match task.as_str() {
            "churn" => crashes::churn(store).await,
            task => processes::work(task, store).await,
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

/// As when a host starts all of its services.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn many_open_a_file_that_is_not_there_at_the_same_moment() {
    for _ in 0..20 {
        let path = path();
        let open = async |path| {
            let leases = Leases::new(store_at(path).await);
            let attempt = leases.try_acquire("key", LONG).await.unwrap();
            if let Attempt::Acquired(lease) = attempt {
                lease.detach();
                return 1;
            }
            0
        };
        let taken = join_all((0..8).map(|_| open(&path))).await;
        assert_eq!(taken.into_iter().sum::<u32>(), 1);
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
async fn a_paused_process_learns_at_once_that_it_lost() {
    let path = path();
    processes::pause_past_the_ttl(&place(&path), store_at(&path).await).await;
}

/// No process has a clock of its own here.
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
