//! Leases in the transactions of an application.

mod refused;
mod upgrades;

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use leasehold::{
    Attempt, Error, Key, Lease, Leases, LossReason, MongoStore, Store, Upgrade,
    store::{ReleaseAnswer, ReleaseRequest},
};
use mongodb::{
    ClientSession, Collection,
    bson::{DateTime, Document, doc},
    error::{Error as DriverError, TRANSIENT_TRANSACTION_ERROR},
};
use tokio::time::{Instant, sleep, timeout};

use super::{DATABASE, Engine, Fixture, LONG, PATIENCE, SHORT, short_lived};

/// Longer than most operations take that do not have to wait.
const A_WHILE: Duration = Duration::from_secs(1);

/// The locks and the data of an application, on a server with transactions.
struct App {
    fixture: Fixture,
    store: MongoStore,
    leases: Leases,
    locks: Collection<Document>,
    data: Collection<Document>,
}

impl App {
    async fn new() -> Self {
        let fixture = Fixture::new(Engine::MongoDbReplicaSet);
        let locks = fixture.collection().await;
        let database = locks.client().database(DATABASE);
        let data = database.collection(&format!("{}_data", fixture.name));
        data.insert_one(doc! { "_id": "written", "by": "nobody" })
            .await
            .unwrap();
        let store = MongoStore::new(&locks);
        Self {
            leases: leases(store.clone()),
            fixture,
            store,
            locks,
            data,
        }
    }

    /// The handle of another process.
    async fn other(&self) -> Leases {
        leases(self.fixture.store().await)
    }

    async fn transaction(&self) -> ClientSession {
        let mut session = self.locks.client().start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        session
    }

    async fn write(&self, by: &str, session: &mut ClientSession) -> Result<(), DriverError> {
        let set = doc! { "$set": { "by": by } };
        let write = self.data.update_one(doc! { "_id": "written" }, set);
        write.session(session).await.map(drop)
    }

    async fn written(&self) -> String {
        let found = self.data.find_one(doc! { "_id": "written" }).await;
        let found = found.unwrap().unwrap();
        found.get_str("by").unwrap().to_owned()
    }

    /// Waits until the key has no holder by the server's clock.
    async fn until_free(&self) {
        let start = Instant::now();
        while !self.leases.inspect("key").await.unwrap().unwrap().is_free() {
            assert!(start.elapsed() < PATIENCE, "it stays held");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks that a caller who ignores the error of `enforce` writes nothing, neither in the transaction nor outside
    /// of it.
    async fn assert_given_up(&self, mut session: ClientSession) {
        let before = self.written().await;
        assert!(self.write("regardless", &mut session).await.is_err());
        assert!(session.commit_transaction().await.is_err());
        assert_eq!(self.written().await, before);
    }
}

fn leases(store: impl Store) -> Leases {
    // This is longer than any transaction here.
    Leases::builder(store).call_timeout(PATIENCE).build()
}

fn assert_lost<T>(outcome: Result<T, Error>, why: fn(&LossReason) -> bool) {
    match outcome.map(drop) {
        Err(Error::Lost { reason, .. }) => assert!(why(&reason), "{reason:?}"),
        other => panic!("{other:?}"),
    }
}

fn expired(reason: &LossReason) -> bool {
    matches!(reason, LossReason::Expired)
}

fn taken_over(reason: &LossReason) -> bool {
    matches!(reason, LossReason::TakenOver)
}

/// Checks that the driver's own helper would run the transaction again.
fn assert_run_again(error: Error) {
    assert!(
        matches!(error, Error::TransactionAborted { .. }),
        "{error:?}"
    );
    assert!(error.is_retryable() && !error.is_ambiguous());
    let driver = DriverError::from(error);
    assert!(
        driver.contains_label(TRANSIENT_TRANSACTION_ERROR),
        "{driver:?}"
    );
}

#[tokio::test]
async fn what_is_written_under_a_lease_is_committed() {
    let app = App::new().await;
    let lease = app.leases.acquire("key", LONG).await.unwrap();
    let mut session = app.transaction().await;
    lease.enforce(&mut session).await.unwrap();
    app.write("the holder", &mut session).await.unwrap();
    // `enforce` may be called several times.
    lease.enforce(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    assert_eq!(app.written().await, "the holder");
    lease.release().await.unwrap();
}

/// The holder is paused before its transaction, or after the first read in it.
#[tokio::test]
async fn a_holder_that_was_paused_past_a_takeover_commits_nothing() {
    for reads_before in [false, true] {
        let app = App::new().await;
        let lease = short_lived(&app.leases, "key").await;
        let mut session = app.transaction().await;
        if reads_before {
            let read = app.data.find_one(doc! {}).session(&mut session).await;
            assert!(read.unwrap().is_some());
        }
        // The next holder has another handle, with the client of the transactions.
        let next = leases(app.store.clone())
            .acquire("key", LONG)
            .await
            .unwrap();
        if reads_before {
            assert_run_again(lease.enforce(&mut session).await.unwrap_err())
        } else {
            assert_lost(lease.enforce(&mut session).await, expired)
        }
        app.assert_given_up(session).await;

        // When the transaction is run again, the holder is told that its lease is lost.
        let mut session = app.transaction().await;
        assert_lost(lease.enforce(&mut session).await, expired);
        app.assert_given_up(session).await;
        assert_eq!(app.written().await, "nobody");
        let mut session = app.transaction().await;
        next.enforce(&mut session).await.unwrap();
        session.commit_transaction().await.unwrap();
    }
}

/// The control of the test above.
#[tokio::test]
async fn without_enforcement_a_holder_that_was_paused_commits() {
    let app = App::new().await;
    let lease = short_lived(&app.leases, "key").await;
    let mut session = app.transaction().await;
    let read = app.data.find_one(doc! {}).session(&mut session).await;
    assert!(read.unwrap().is_some());
    let _next = app.other().await.acquire("key", LONG).await.unwrap();
    assert!(!lease.is_live());
    app.write("the late one", &mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    assert_eq!(app.written().await, "the late one");
}

/// A transaction with a lease that will expire soon. The lease has to be live until it is enforced, so if the machine
/// took longer than the ttl, the next attempt has a longer ttl.
async fn enforced() -> (App, Lease, ClientSession) {
    let mut ttl = SHORT;
    loop {
        let app = App::new().await;
        let mut session = app.transaction().await;
        let start = Instant::now();
        let error = match app.leases.acquire("key", ttl).await {
            Ok(lease) => match lease.enforce(&mut session).await {
                Ok(()) => return (app, lease, session),
                Err(error) => error,
            },
            Err(error) => error,
        };
        let late = match &error {
            Error::TimedOut { .. } | Error::NotTaken { .. } => true,
            Error::Lost { reason, .. } => expired(reason),
            _ => false,
        };
        let took = start.elapsed();
        let over = took >= ttl - app.store.clock_margin();
        assert!(late && over, "{error:?} after {took:?} of {ttl:?}");
        ttl *= 2;
        assert!(ttl < PATIENCE, "no lease was enforced in time");
    }
}

#[tokio::test]
async fn a_takeover_waits_for_the_commit_and_sees_what_was_written() {
    for commits in [true, false] {
        let (app, lease, mut session) = enforced().await;
        app.write("the holder", &mut session).await.unwrap();
        app.until_free().await;
        let other = app.other().await;
        let mut takeover = tokio::spawn(async move { other.try_acquire("key", LONG).await });
        let waited = timeout(A_WHILE, &mut takeover).await;
        assert!(waited.is_err(), "it did not wait: {waited:?}");
        assert_eq!(app.written().await, "nobody");
        if commits {
            session.commit_transaction().await.unwrap()
        } else {
            session.abort_transaction().await.unwrap()
        }
        let granted = timeout(PATIENCE, takeover).await;
        let granted = granted.expect("it waits no longer").unwrap().unwrap();
        let Attempt::Acquired(granted) = granted else {
            panic!("{granted:?}");
        };
        assert!(granted.fence() > lease.fence());
        let seen = if commits { "the holder" } else { "nobody" };
        assert_eq!(app.written().await, seen);
    }
}

/// Ends the lease without its holder's knowledge. By the holder's own clock it is live.
async fn ended_by(end: impl AsyncFn(&App, &Lease), why: fn(&LossReason) -> bool) {
    let app = App::new().await;
    let lease = app.leases.acquire("key", LONG).await.unwrap();
    // One transaction begins before the end of the lease, and one after it.
    let mut early = app.transaction().await;
    let read = app.data.find_one(doc! {}).session(&mut early).await;
    assert!(read.unwrap().is_some());
    end(&app, &lease).await;
    assert!(lease.is_live());
    assert_run_again(lease.enforce(&mut early).await.unwrap_err());
    app.assert_given_up(early).await;
    assert!(lease.is_live(), "an old sight is no loss");

    let mut session = app.transaction().await;
    assert_lost(lease.enforce(&mut session).await, why);
    assert!(!lease.is_live());
    app.assert_given_up(session).await;
    assert_eq!(app.written().await, "nobody");
}

#[tokio::test]
async fn a_lease_that_was_evicted_enforces_nothing() {
    let evict = async |app: &App, _: &Lease| {
        app.other().await.evict("key").await.unwrap().unwrap();
    };
    ended_by(evict, taken_over).await;
}

#[tokio::test]
async fn a_lease_that_was_released_elsewhere_enforces_nothing() {
    let release = async |app: &App, lease: &Lease| {
        let request = ReleaseRequest::new(lease.key().clone(), lease.id());
        let answer = app.store.release(&request).await.unwrap();
        assert_eq!(answer, ReleaseAnswer::Released);
    };
    ended_by(release, taken_over).await;
}

#[tokio::test]
async fn a_lease_that_expired_on_the_servers_clock_enforces_nothing() {
    let expire = async |app: &App, _: &Lease| {
        let past = DateTime::from_millis(0);
        let set = doc! { "$set": { "expires_at": past } };
        app.locks.update_one(doc! {}, set).await.unwrap();
    };
    ended_by(expire, expired).await;
}

/// A late request may be granted the lease id anew, after another holder had the key.
#[tokio::test]
async fn a_lease_that_was_granted_anew_enforces_nothing() {
    let grant = async |app: &App, lease: &Lease| {
        let fence = lease.fence().get() + 2;
        let set = doc! { "$set": { "fence": fence } };
        app.locks.update_one(doc! {}, set).await.unwrap();
    };
    ended_by(grant, taken_over).await;
}

#[tokio::test]
async fn a_renewal_waits_for_the_transaction_and_succeeds() {
    let app = App::new().await;
    let lease = Arc::new(app.leases.acquire("key", LONG).await.unwrap());
    let mut session = app.transaction().await;
    lease.enforce(&mut session).await.unwrap();
    let before = lease.deadline();
    let renewed = lease.clone();
    let mut renewal = tokio::spawn(async move { renewed.renew().await });
    let waited = timeout(A_WHILE, &mut renewal).await;
    assert!(waited.is_err(), "it did not wait: {waited:?}");
    app.write("the holder", &mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    let renewal = timeout(PATIENCE, renewal).await;
    renewal.expect("it waits no longer").unwrap().unwrap();
    assert!(lease.deadline() > before);
    assert_eq!(app.written().await, "the holder");
}

/// The transaction conflicts with a renewal. The driver's helper runs it again.
#[tokio::test]
async fn the_drivers_helper_runs_a_transaction_with_a_conflict_again() {
    let app = App::new().await;
    let lease = app.leases.acquire("key", LONG).await.unwrap();
    let mut session = app.locks.client().start_session().await.unwrap();
    let mut runs = 0;
    let context = (&app, &lease, &mut runs);
    let outcome = session
        .start_transaction()
        .and_run(context, |session, (app, lease, runs)| {
            async move {
                **runs += 1;
                app.data.find_one(doc! {}).session(&mut *session).await?;
                if **runs == 1 {
                    // Within the millisecond of the grant a renewal would change nothing.
                    sleep(Duration::from_millis(50)).await;
                    lease.renew().await?;
                }
                lease.enforce(session).await?;
                app.write("the holder", session).await
            }
            .boxed()
        })
        .await;
    outcome.unwrap();
    assert_eq!(runs, 2);
    assert_eq!(app.written().await, "the holder");

    // A transaction whose lease is lost is not run again, and the error of the lease comes back unchanged.
    app.leases.evict("key").await.unwrap().unwrap();
    let outcome = session
        .start_transaction()
        .and_run((&app, &lease), |session, (app, lease)| {
            async move {
                lease.enforce(session).await?;
                app.write("too late", session).await
            }
            .boxed()
        })
        .await;
    let error = outcome.unwrap_err();
    let ours = error.get_custom::<Error>().cloned();
    assert_lost(ours.map_or(Ok(()), Err), taken_over);
    assert_eq!(app.written().await, "the holder");
}

#[tokio::test]
async fn the_mark_of_an_enforcement_is_in_nobodys_way() {
    let app = App::new().await;
    for shared in [false, true] {
        let acquire = app.leases.acquire("key", LONG);
        let acquire = if shared { acquire.shared() } else { acquire };
        let lease = acquire.await.unwrap();
        let mut session = app.transaction().await;
        lease.enforce(&mut session).await.unwrap();
        session.commit_transaction().await.unwrap();
        let marked = app.locks.find_one(doc! {}).await.unwrap().unwrap();
        assert!(marked.contains_key("touched"), "{marked}");

        lease.renew().await.unwrap();
        let state = app.leases.inspect("key").await.unwrap().unwrap();
        let holders: Vec<_> = state.holders.iter().map(|it| it.lease).collect();
        assert_eq!(holders, [lease.id()]);
        lease.downgrade().await.unwrap();
        let upgraded = lease.upgrade().await.unwrap();
        assert_eq!(upgraded, Upgrade::Exclusive);
        let mut session = app.transaction().await;
        lease.enforce(&mut session).await.unwrap();
        session.commit_transaction().await.unwrap();
        lease.release().await.unwrap();

        let next = app.leases.acquire("key", LONG).await.unwrap();
        let fresh = app.locks.find_one(doc! {}).await.unwrap().unwrap();
        assert!(!fresh.contains_key("touched"), "{fresh}");
        next.release().await.unwrap();
    }
}

/// `enforce` finds the store behind a wrapper that passes the question on, and behind the type that shares it.
#[tokio::test]
async fn a_store_behind_another_is_found() {
    let app = App::new().await;
    let wrapped =
        super::listeners::ListeningStore::new(app.store.clone(), super::listeners::Listening::Deaf);
    let shared: Arc<dyn Store> = Arc::new(leasehold_tests::layer::Layered(wrapped));
    let leases = Leases::new(shared);
    let lease = leases
        .acquire(Key::new("key").unwrap(), LONG)
        .await
        .unwrap();
    let mut session = app.transaction().await;
    lease.enforce(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
}

#[tokio::test]
async fn a_lease_from_memory_is_enforced_by_the_lease_in_the_store() {
    let app = App::new().await;
    let sticky = async || app.leases.acquire("key", LONG).sticky(LONG).await.unwrap();
    sticky().await.release().await.unwrap();
    let lease = sticky().await;
    let mut session = app.transaction().await;
    lease.enforce(&mut session).await.unwrap();
    app.write("me", &mut session).await.unwrap();
    // No task is granted the key from memory from now on: the release waits for the end of the transaction.
    let release = tokio::spawn(lease.release());
    sleep(A_WHILE).await;
    assert!(!release.is_finished(), "the transaction keeps the key");
    session.commit_transaction().await.unwrap();
    timeout(PATIENCE, release).await.unwrap().unwrap().unwrap();
    assert_eq!(app.written().await, "me");
    app.until_free().await;

    // It is lost with its own ttl, although the lease in the store lives on.
    sticky().await.release().await.unwrap();
    let short = app.leases.acquire("key", SHORT).await.unwrap();
    let reason = timeout(PATIENCE, short.lost()).await.unwrap();
    assert!(expired(&reason), "{reason:?}");
    let mut session = app.transaction().await;
    assert_lost(short.enforce(&mut session).await, expired);
    app.assert_given_up(session).await;

    // An eviction ends it like any other.
    let lease = sticky().await;
    assert_eq!(lease.id(), short.id(), "the key has stayed");
    app.other().await.evict("key").await.unwrap();
    let mut session = app.transaction().await;
    assert_lost(lease.enforce(&mut session).await, taken_over);
    app.assert_given_up(session).await;
}
