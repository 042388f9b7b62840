//! A server whose clock is set back and forward while leases are held.

use std::{fs, path::Path, time::Duration};

use leasehold::{Attempt, Leases, MongoStore, Resumed};
use leasehold_tests::{engine::OwnEngine, patient};
use mongodb::options::ClientOptions;
use tempfile::TempDir;
use tokio::time::sleep;

use super::{ATTEMPTS, DATABASE, Engine, LONG, soon_mended};

const TTL: Duration = Duration::from_secs(10);

/// A server with a clock of its own.
struct Clocked {
    engine: OwnEngine,
    folder: TempDir,
}

impl Clocked {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let clock = folder.path().join("clock");
        set(&clock, "+0");
        Self {
            engine: Engine::MongoDb.with_clock(&clock),
            folder,
        }
    }

    /// Sets the clock, and waits until the server has the time.
    async fn set(&self, leases: &Leases, off: &str, is_set: impl Fn(i64) -> bool) {
        set(&self.folder.path().join("clock"), off);
        let seconds = async || {
            let now = leases.inspect("clock").await.unwrap().unwrap().now;
            (now - chrono::Utc::now()).num_seconds()
        };
        while !is_set(seconds().await) {
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn leases(&self) -> Leases {
        let options = ClientOptions::parse(&self.engine.address).await.unwrap();
        let client = mongodb::Client::with_options(soon_mended(options)).unwrap();
        patient(MongoStore::new(
            &client
                .database(DATABASE)
                .collection::<mongodb::bson::Document>("locks"),
        ))
    }
}

fn set(clock: &Path, off: &str) {
    // The server reads the whole file, or the one before it.
    let new = clock.with_extension("new");
    fs::write(&new, off).unwrap();
    fs::rename(new, clock).unwrap();
}

#[tokio::test]
async fn a_lease_that_is_renewed_by_a_clock_that_was_set_back_counts_for_its_ttl() {
    let server = Clocked::start();
    let (leases, other) = (server.leases().await, server.leases().await);
    let _clock = leases.acquire("clock", LONG).await.unwrap();
    for key in ["renewed", "resumed"] {
        // On a slow machine the lease is over before the clock is set back.
        let mut lease = None;
        for _ in 0..ATTEMPTS {
            let acquired = leases.acquire(key, TTL).await.unwrap();
            server.set(&leases, "-100s", |off| off < -90).await;
            lease = match key {
                "renewed" => acquired.renew().await.is_ok().then_some(acquired),
                _ => match other.resume(&acquired.into_ticket()).await.unwrap() {
                    Resumed::Live(lease) => Some(lease),
                    Resumed::Gone(_) => None,
                },
            };
            server.set(&leases, "+0", |off| off > -10).await;
            if lease.is_some() {
                break;
            }
        }
        let lease = lease.expect("each time the machine was too slow");
        // By the clock of that renewal it would be 110 s.
        assert!(lease.remaining() <= TTL, "{lease:?}");
        lease.lost().await;
        let next = other.acquire(key, TTL).await.unwrap();
        // It may be over already.
        let _ = next.release().await;
    }
}

/// The server was a day ahead when it granted the lease, and its holder has died since.
#[tokio::test]
async fn a_holder_of_a_clock_that_was_ahead_is_named() {
    let server = Clocked::start();
    let (leases, other) = (server.leases().await, server.leases().await);
    let _clock = leases.acquire("clock", LONG).await.unwrap();
    server.set(&leases, "+1d", |off| off > 80_000).await;
    let lease = leases.acquire("key", TTL).await.unwrap();
    lease.detach().unwrap();
    server.set(&leases, "+0", |off| off < 10).await;
    let Attempt::Held(held) = other.try_acquire("key", TTL).await.unwrap() else {
        panic!("granted although a holder may be at work");
    };
    let words = "a time that no ttl explains: the server's clock was ahead";
    assert!(held.to_string().contains(words), "{held}");
    other.evict("key").await.unwrap();
    let lease = other.acquire("key", TTL).await.unwrap();
    lease.release().await.unwrap();
}
