//! Other code of the process opens and closes the files, as a copy of them does. With that the process loses the locks
//! that SQLite has on them.

use std::{fs, path::Path, thread};

use leasehold::{Attempt, Leases};
use leasehold_tests::processes::{Place, Process};

use super::{
    LONG,
    between_processes::{place, wait_for_the_gate},
    path, store_at,
};

/// How many grants each of the processes gets, and after how many it opens the file anew.
const GRANTS: usize = 200;
const GRANTS_OF_A_STORE: usize = 25;

/// The work of a process: it acquires and releases a key, while another thread opens and closes the files all the time.
pub async fn work(path: &Path, gate: &Path) {
    wait_for_the_gate(gate).await;
    let files = ["", "-wal", "-shm", "-lock"].map(|end| format!("{}{end}", path.display()));
    // The thread ends with the process.
    thread::spawn(move || {
        loop {
            files.iter().for_each(|file| drop(fs::File::open(file)));
        }
    });
    for _ in 0..GRANTS / GRANTS_OF_A_STORE {
        acquire_and_release(path).await;
    }
    println!("\ntold ended 0 0");
}

async fn acquire_and_release(path: &Path) {
    let leases = Leases::new(store_at(path).await);
    let mut granted = 0;
    while granted < GRANTS_OF_A_STORE {
        if let Attempt::Acquired(lease) = leases.try_acquire("key", LONG).await.unwrap() {
            println!("\ntold granted {} 0", lease.fence());
            lease.release().await.unwrap();
            granted += 1;
        }
    }
}

#[tokio::test]
async fn a_process_that_copies_the_files_keeps_others_out() {
    let (path, gate) = (path(), path());
    drop(store_at(&path).await);
    let place = Place {
        name: gate.to_str().unwrap().to_owned(),
        ..place(&path)
    };
    let mut both = [(); 2].map(|()| Process::start(&place, "copy"));
    for one in &mut both {
        assert_eq!(one.next().await.0, "waiting");
    }
    fs::write(&gate, "").unwrap();
    let mut fences = Vec::new();
    for one in both {
        let mut told = one.rest().await;
        let ended = told.pop().map(|told| told.0);
        assert_eq!(ended.as_deref(), Some("ended"), "a process failed");
        fences.extend(told.into_iter().map(|told| told.1));
    }
    let all = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(all, 2 * GRANTS);
    assert_eq!(fences.len(), all, "fences were granted twice");
}
