//! Releases of leases whose acquires may still be carried out late. A failover must not undo such a release.

use std::time::Duration;

use leasehold::{Leases, MongoStore};
use leasehold_tests::proxy::Proxy;
use mongodb::bson::Document;

use super::{
    super::{Commands, Engine, Fixture, LONG, PATIENCE, SHORT},
    Acknowledged, of,
};

/// A store behind a proxy, and the commands that it sends.
async fn proxied(more: &str) -> (Proxy, MongoStore, Commands) {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let proxy = Proxy::to(fixture.options().await.hosts[0].to_string()).await;
    let options = fixture.options_at(proxy.address, more).await;
    let (collection, commands) = fixture.watched_with(options);
    let store = MongoStore::new::<Document>(&collection);
    // This opens the connection and asks for the kind of server before anything is held back.
    store.prepare().await.unwrap();
    (proxy, store, commands)
}

/// What acknowledged the releases that were sent since the last call.
fn releases(commands: &Commands) -> Vec<Acknowledged> {
    let is_release = |command: &&Document| command.contains_key("update");
    commands.take().iter().filter(is_release).map(of).collect()
}

#[tokio::test]
async fn a_lease_that_was_granted_to_nobody_is_given_back_for_good() {
    let (proxy, store, commands) = proxied("").await;
    let leases = Leases::builder(store).call_timeout(PATIENCE).build();
    let gate = proxy.hold_the_answer_to("findAndModify");
    let acquiring = tokio::spawn({
        let leases = leases.clone();
        async move { leases.acquire("key", LONG).await.map(drop) }
    });
    gate.reached().await;
    acquiring.abort();
    assert!(acquiring.await.unwrap_err().is_cancelled());
    let held = leases.inspect("key").await.unwrap().unwrap();
    assert!(!held.is_free(), "the control: it was granted");
    commands.take();
    gate.open();
    leases.close().await;
    assert_eq!(releases(&commands), [Acknowledged::Durably]);
    let held = leases.inspect("key").await.unwrap().unwrap();
    assert!(held.is_free());
}

/// The first request of the acquire ended in an error that does not say whether it is still on its way. So the lease
/// may be granted anew after its release.
#[tokio::test]
async fn a_lease_that_may_be_granted_anew_is_released_for_good() {
    for lose in [Proxy::lose_the_request, Proxy::lose_the_answer_to] {
        // The client repeats a request within this time. On a slow machine it takes more.
        let mut longest = SHORT;
        while !is_released_for_good(lose, longest).await {
            longest *= 2;
            assert!(longest < PATIENCE, "too slow for {longest:?}");
        }
    }
}

/// Whether there was time for the acquire and the release. If so, each release was acknowledged durably.
async fn is_released_for_good(lose: fn(&Proxy, &'static str), longest: Duration) -> bool {
    // With this option the driver does not send a write again, and the client does.
    let (proxy, store, commands) = proxied("&retryWrites=false").await;
    let leases = Leases::builder(store).call_timeout(longest).build();
    lose(&proxy, "findAndModify");
    let acquired = leases.acquire("key", LONG).await;
    assert_eq!(proxy.cuts(), 1, "the control: the first request failed");
    let lease = match acquired {
        Ok(lease) => lease,
        Err(error) => {
            assert!(error.is_retryable(), "{error:?}");
            return false;
        }
    };
    commands.take();
    // The release is repeated while the first request may still arrive. On a slow server it is repeated earlier as
    // well.
    let released = lease.release().await;
    leases.close().await;
    let sent = releases(&commands);
    assert!(!sent.is_empty());
    let durable = sent.iter().all(|it| *it == Acknowledged::Durably);
    assert!(durable, "{sent:?}");
    let held = leases.inspect("key").await;
    let (Ok(()), Ok(held)) = (released, held) else {
        return false;
    };
    assert!(held.unwrap().is_free());
    true
}
