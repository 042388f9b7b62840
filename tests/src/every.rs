//! Every operation, on a store that cannot carry any of them out.

use std::time::Duration;

use futures::{FutureExt, TryStreamExt, future::BoxFuture};
use leasehold::{
    Error, Filter, Key, Leases, Store,
    store::{
        AcquireRequest, ConvertRequest, LeaseId, LookRequest, PermitId, PermitRequest, Quota,
        ReleaseRequest, RenewRequest, Turn,
    },
};
use tokio::time::{Instant, timeout};

/// Longer than any operation takes, however slow the machine is. It only ends a hang.
const AT_MOST: Duration = Duration::from_secs(300);
const TTL: Duration = Duration::from_secs(600);

/// The outcomes of operations, with their names.
pub type Outcomes = Vec<(&'static str, Result<(), Error>)>;

fn key() -> Key {
    Key::new("key").unwrap()
}

/// The operations of a handle, all at once, with this time limit for those that wait. Checks that none panics and none
/// takes too long.
pub async fn of_a_handle(leases: &Leases, patience: Duration) -> Outcomes {
    let limiter = leases.limiter(key(), 5, TTL);
    let mut outcomes: Vec<(_, BoxFuture<'_, Result<(), Error>>)> = Vec::new();
    macro_rules! run {
        ($($name:literal: $operation:expr;)*) => {
            $(outcomes.push(($name, $operation.map(|it| it.map(drop)).boxed()));)*
        };
    }
    run! {
        "try_acquire": leases.try_acquire(key(), TTL).into_future();
        "try_acquire shared": leases.try_acquire(key(), TTL).shared().into_future();
        "try_acquire permits": leases.try_acquire(key(), TTL).permits(1, 2).into_future();
        "acquire": leases.acquire(key(), TTL).wait_for(patience).into_future();
        "acquire_all": leases.acquire_all(["a", "b"], TTL).wait_for(patience).into_future();
        "inspect": leases.inspect(key());
        "inspect dots": leases.inspect("..");
        "list": leases.list(Filter::new()).try_collect::<Vec<_>>();
        "evict": leases.evict(key());
        "release_owner": leases.release_owner("me");
        "remove_expired": leases.remove_expired(key());
        "purge": leases.purge(Duration::ZERO);
        "try_permit": limiter.try_permit();
        "permit": limiter.permit().wait_for(patience).into_future();
        "smooth permit": leases.limiter(key(), 5, TTL).smooth(2).permit().wait_for(patience).into_future();
    }
    in_time(outcomes).await
}

/// The operations of a store that a handle carries out only for a lease that it has.
pub async fn of_a_holder(store: &dyn Store) -> Outcomes {
    let lease = LeaseId::random();
    let renewal = RenewRequest::new(key(), lease, TTL);
    let two = [renewal.clone(), renewal.clone()];
    let one = [renewal];
    let upgrade = ConvertRequest::upgrade(key(), lease);
    let downgrade = ConvertRequest::downgrade(key(), lease);
    let release = ReleaseRequest::new(key(), lease);
    let holding = release.clone().min_hold(TTL, LeaseId::random());
    let acquire = AcquireRequest::exclusive(key(), lease, "me".into(), TTL);
    let again = acquire.clone().reentrant();
    let waiter = LeaseId::random();
    let in_turn = AcquireRequest::exclusive(key(), LeaseId::random(), "me".into(), TTL);
    let in_turn = in_turn.turn(Turn::in_turn(waiter, TTL));
    let permit = Quota::fixed(5, TTL).unwrap();
    let permit = PermitRequest::new(key(), PermitId::random(), permit, 1);
    let each = |answers: Result<Vec<Result<_, Error>>, Error>| {
        let answers: Vec<_> = answers?.into_iter().collect::<Result<_, _>>()?;
        assert!(!answers.is_empty());
        Ok(())
    };
    let keys = [key(), Key::new("another").unwrap()];
    let looks = keys.map(|key| LookRequest::new(key, lease));
    let mut outcomes: Vec<(_, BoxFuture<'_, Result<(), Error>>)> = vec![
        ("renew", store.renew(&one).map(each).boxed()),
        ("renew two", store.renew(&two).map(each).boxed()),
    ];
    macro_rules! run {
        ($($name:literal: $operation:expr;)*) => {
            $(outcomes.push(($name, $operation.map(|it| it.map(drop)).boxed()));)*
        };
    }
    run! {
        "upgrade": store.convert(&upgrade);
        "downgrade": store.convert(&downgrade);
        "release": store.release(&release);
        "release holding": store.release(&holding);
        "store acquire": store.acquire(&acquire);
        "store acquire again": store.acquire(&again);
        "store acquire in turn": store.acquire(&in_turn);
        "leave": store.leave(&in_turn.key, waiter);
        "store permit": store.permit(&permit);
        "look": store.look(&looks);
    }
    in_time(outcomes).await
}

async fn in_time(outcomes: Vec<(&'static str, BoxFuture<'_, Result<(), Error>>)>) -> Outcomes {
    let start = Instant::now();
    let outcomes = outcomes.into_iter().map(async |(name, outcome)| {
        let outcome = timeout(AT_MOST, outcome).await;
        let outcome = outcome.unwrap_or_else(|_| panic!("{name} took {:?}", start.elapsed()));
        if let Err(error) = &outcome {
            let text = format!("{error:?}");
            assert!(!text.contains("panicked"), "{name}: {text}");
        }
        (name, outcome)
    });
    futures::future::join_all(outcomes).await
}
