//! A lease that replaces another one.

use futures::future::join_all;

use super::{
    Clients, LONG, Outcome, ensure, expired, fresh_key, granted, no_tick, refused, renew, request,
    sole_holder, state, violation,
};
use leasehold::{
    Key,
    store::{AcquireAnswer, AcquireRequest, ReleaseAnswer, ReleaseRequest, RenewAnswer},
};

fn next(key: &Key, before: &AcquireRequest) -> AcquireRequest {
    request(key, "the next", LONG).in_place_of(before.lease)
}

/// A lease replaces another one in one step, with a greater fence, and only while the other one is among the holders.
pub async fn a_lease_makes_way_for_another(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("make way")?;
    let before = request(&key, "the first", LONG);
    let old = granted(first, &before).await?;
    let after = next(&key, &before);
    let new = granted(second, &after).await?;
    ensure!(
        new.fence > old.fence,
        "a lease with the fence {} made way for one with {}",
        old.fence,
        new.fence
    );
    let holder = sole_holder(first, &key).await?;
    ensure!(holder.lease == after.lease, "{holder:?} holds the key");
    let again = granted(second, &after).await?;
    ensure!(
        again.fence == new.fence,
        "the same request was granted twice, with the fences {} and {}",
        new.fence,
        again.fence
    );
    let renewed = renew(first, &key, before.lease, LONG).await?;
    ensure!(
        renewed == RenewAnswer::TakenOver,
        "a lease that made way was renewed: {renewed:?}"
    );
    let release = ReleaseRequest::new(key.clone(), before.lease);
    let released = first.release(&release).await?;
    ensure!(
        released == ReleaseAnswer::NotHeld,
        "a lease that made way was released once more"
    );
    // A lease that is not among the holders cannot be replaced.
    let held = refused(first, &next(&key, &before)).await?;
    ensure!(held.holders().len() == 1, "{held:?}");
    let now = state(second, &key).await?;
    ensure!(
        now.fence == new.fence && now.holders[0].lease == after.lease,
        "a refusal changed {holder:?} to {now:?}"
    );
    first
        .release(&ReleaseRequest::new(key.clone(), after.lease))
        .await?;
    let held = refused(second, &next(&key, &after)).await?;
    ensure!(held.holders().is_empty(), "a free key has {held:?}");
    let left = state(first, &key).await?;
    ensure!(
        left.is_free() && left.fence == new.fence,
        "a refusal left {left:?}"
    );
    let unknown = fresh_key("nobody makes way")?;
    refused(first, &next(&unknown, &before)).await?;
    ensure!(
        second.inspect(&unknown).await?.is_none(),
        "a refusal made a document"
    );

    // An expired lease can be replaced as long as nobody else was granted the key.
    let (dead, _) = expired(first, "makes way late", "the first").await?;
    granted(second, &next(&dead.key, &dead)).await?;
    sole_holder(first, &dead.key).await?;
    beside_others(clients).await
}

/// The other holders can conflict with the new lease.
async fn beside_others(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("one of two makes way")?;
    let readers = [(); 2].map(|()| request(&key, "a reader", LONG).shared());
    for reader in &readers {
        granted(first, reader).await?;
    }
    let held = refused(second, &next(&key, &readers[0])).await?;
    ensure!(held.holders().len() == 2, "a writer found {held:?}");
    let after = next(&key, &readers[0]).shared();
    granted(second, &after).await?;
    let holders = state(first, &key).await?.holders;
    let leases: Vec<_> = holders.iter().map(|holder| holder.lease).collect();
    ensure!(
        leases == [readers[1].lease, after.lease],
        "{leases:?} hold a key that {} left to {}",
        readers[0].lease,
        after.lease
    );
    Ok(())
}

/// A lease is replaced by one other only, however many ask for that.
pub async fn a_lease_makes_way_for_one_only(clients: &Clients) -> Outcome {
    for _ in 0..10 {
        let key = fresh_key("make way for one")?;
        let before = request(&key, "the first", LONG);
        granted(&clients.first, &before).await?;
        let race = (0..16).map(|number| {
            let (store, next) = (clients.of_task(number), next(&key, &before));
            tokio::spawn(async move { store.acquire(&next).await })
        });
        let mut winners = 0;
        for outcome in join_all(race).await {
            match outcome?? {
                AcquireAnswer::Granted(_) => winners += 1,
                AcquireAnswer::Held(_) => {}
                AcquireAnswer::Done(done) => return no_tick(&done),
            }
        }
        if winners != 1 {
            return violation(format!("a lease made way for {winners}"));
        }
    }
    Ok(())
}
