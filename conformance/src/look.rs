//! Looks at leases.

use std::sync::Arc;

use leasehold::{
    Key, Store,
    store::{LeaseId, LookAnswer, LookRequest},
};
use tokio::time::{Instant, sleep};

use super::{
    Clients, LONG, LOOK, Outcome, PATIENCE, ensure, fresh_key, granted, release, request, violation,
};

/// A look tells of each lease whether it is among the holders of its key: not if it was released, evicted or never
/// granted, also if another lease has the key.
pub async fn a_look_tells_whether_a_lease_is_held(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = |name: &str| fresh_key(&format!("look / {name}"));
    let mut expected = Vec::new();
    let mut expect = |key: &Key, lease: LeaseId, is_held: bool| {
        expected.push((LookRequest::new(key.clone(), lease), is_held));
    };
    expect(&key("unknown")?, LeaseId::random(), false);
    let alone = request(&key("alone")?, "the holder", LONG).note("alone");
    granted(first, &alone).await?;
    expect(&alone.key, alone.lease, true);
    expect(&alone.key, LeaseId::random(), false);
    let readers = [(); 3].map(|()| request(&alone.key, "a reader", LONG).shared());
    let several = key("several")?;
    for mut reader in readers.clone() {
        reader.key = several.clone();
        granted(first, &reader).await?;
    }
    let mut left = readers[1].clone();
    left.key = several.clone();
    release(second, &left).await?;
    for reader in &readers {
        expect(&several, reader.lease, reader.lease != left.lease);
    }
    let released = request(&key("released")?, "the holder", LONG);
    granted(first, &released).await?;
    release(first, &released).await?;
    expect(&released.key, released.lease, false);
    for (name, is_granted_again) in [("evicted", false), ("granted again", true)] {
        let evicted = request(&key(name)?, "the holder", LONG);
        granted(first, &evicted).await?;
        second.evict(&evicted.key).await?;
        expect(&evicted.key, evicted.lease, false);
        if is_granted_again {
            let next = request(&evicted.key, "the next", LONG);
            granted(second, &next).await?;
            expect(&next.key, next.lease, true);
        }
    }
    tells(first, &expected).await?;
    let nothing = first.look(&[]).await?;
    ensure!(nothing.is_empty(), "a look at no leases tells {nothing:?}");
    Ok(())
}

/// Waits until a look tells this of the leases. The answer may be a moment out of date.
async fn tells(store: &Arc<dyn Store>, expected: &[(LookRequest, bool)]) -> Outcome {
    let requests: Vec<_> = expected
        .iter()
        .map(|(request, _)| request.clone())
        .collect();
    let answer = |(_, is_held): &(LookRequest, bool)| LookAnswer::new(*is_held, false);
    let expected: Vec<_> = expected.iter().map(answer).collect();
    let start = Instant::now();
    loop {
        let told = store.look(&requests).await?;
        if told == expected {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return violation(format!(
                "a look at {requests:?} should tell {expected:?}, and tells {told:?}"
            ));
        }
        sleep(LOOK).await;
    }
}
