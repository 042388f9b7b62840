//! A holder is paused past its ttl. Another one takes over, writes and releases, and then the first one goes on and
//! writes too, without a check of its lease. In each round there is a document that the fence guards, and beside it one
//! without a guard, as a control.

use std::{process::Stdio, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use leasehold::{Error, Fence, Lease, Leases, Store};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{
    super::{long, patient},
    LONG, Place, Process, process, told,
};

const AT_A_TIME: usize = 10;
const TTL: Duration = Duration::from_secs(2);
const STALE: &str = "stale";
const NEXT: &str = "next";

/// Documents of an application, each with a number and the name of the last writer.
#[async_trait]
pub trait Documents: Send + Sync {
    /// Creates a document with the number 0.
    async fn create(&self, id: &str);

    /// Reads the number. If there is a fence, it is shown to the document first.
    async fn read(&self, id: &str, fence: Option<Fence>) -> Result<u64, Error>;

    /// Writes the number and the name. If there is a fence, it guards the write.
    async fn write(
        &self,
        id: &str,
        number: u64,
        by: &str,
        fence: Option<Fence>,
    ) -> Result<(), Error>;

    /// The last writer of the document.
    async fn writer(&self, id: &str) -> String;
}

/// The number of keys in each pause, and the number of pauses: a hundred rounds, or a thousand in a long run.
fn rounds() -> (usize, usize) {
    if long() { (100, 10) } else { (50, 2) }
}

/// The lease of a holder, and the numbers that it has read.
struct Work {
    lease: Lease,
    guarded: u64,
    plain: u64,
}

fn key(number: usize) -> String {
    format!("key {number}")
}

fn guarded(number: usize) -> String {
    format!("guarded-{number}")
}

fn plain(number: usize) -> String {
    format!("plain-{number}")
}

async fn begin(leases: &Leases, documents: &dyn Documents, ttl: Duration) -> Vec<Work> {
    let begin = async |number| {
        let lease = loop {
            match leases.acquire(key(number), ttl).await {
                Ok(lease) => break lease,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        };
        let fence = Some(lease.fence());
        Work {
            guarded: documents.read(&guarded(number), fence).await.unwrap(),
            plain: documents.read(&plain(number), None).await.unwrap(),
            lease,
        }
    };
    in_turn((0..rounds().0).map(begin)).await
}

/// Runs a few at a time: a slow machine would answer a hundred at once only after the lease has expired.
async fn in_turn<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    stream::iter(all).buffered(AT_A_TIME).collect().await
}

/// Writes all documents, and returns how many of the guarded writes were let through and how many were fenced off.
async fn end(documents: &dyn Documents, works: &[Work], by: &str) -> (i64, i64) {
    let write = async |(number, work): (usize, &Work)| {
        let (plain, guarded) = (plain(number), guarded(number));
        let written = documents.write(&plain, work.plain + 1, by, None);
        written.await.unwrap();
        let fence = Some(work.lease.fence());
        let written = documents.write(&guarded, work.guarded + 1, by, fence);
        match written.await {
            Ok(()) => true,
            Err(Error::Fenced { seen, .. }) => {
                assert!(seen > fence, "{seen:?} after {fence:?}");
                false
            }
            Err(error) => panic!("{error}"),
        }
    };
    let written = in_turn(works.iter().enumerate().map(write)).await;
    let passed = written.iter().filter(|passed| **passed).count() as i64;
    (passed, works.len() as i64 - passed)
}

/// The holder that is paused between its reads and its writes. It writes when it is told to.
pub async fn stale(store: Arc<dyn Store>, documents: &dyn Documents) {
    let leases = patient(store);
    let mut words = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let works = begin(&leases, documents, TTL).await;
        told("ready", 0, 0);
        let Some(_) = words.next_line().await.unwrap() else {
            return;
        };
        let (passed, fenced) = end(documents, &works, STALE).await;
        told("wrote", passed, fenced);
    }
}

/// Runs many rounds. With the guard no stale write is seen, and without it all of them are.
pub async fn pauses_and_takeovers(place: &Place, store: Arc<dyn Store>, documents: &dyn Documents) {
    let create = async |number| {
        documents.create(&guarded(number)).await;
        documents.create(&plain(number)).await;
    };
    let (keys, pauses) = rounds();
    in_turn((0..keys).map(create)).await;
    let leases = patient(store);
    let mut command = process(place, "stale");
    command.stdin(Stdio::piped());
    let mut other = Process::of(command);
    let mut word = other.child.stdin.take().unwrap();

    let (mut stale, mut lost) = (0, 0);
    for _ in 0..pauses {
        assert_eq!(other.next().await.0, "ready");
        other.stop();
        let works = begin(&leases, documents, LONG).await;
        assert_eq!(end(documents, &works, NEXT).await, (keys as i64, 0));
        let release = async |work: Work| work.lease.release().await.unwrap();
        in_turn(works.into_iter().map(release)).await;
        other.resume();
        word.write_all(b"go on\n").await.unwrap();
        assert_eq!(other.next().await, ("wrote".to_owned(), 0, keys as i64));

        for number in 0..keys {
            stale += usize::from(documents.writer(&guarded(number)).await == STALE);
            lost += usize::from(documents.writer(&plain(number)).await == STALE);
        }
    }
    let rounds = keys * pauses;
    println!(
        "{}: of {rounds} rounds {stale} had a stale write under the guard, and {lost} without it",
        place.kind
    );
    assert_eq!((stale, lost), (0, rounds));
}
