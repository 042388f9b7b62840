//! Conversions that are carried out late, after their sender has given up waiting for the answer.

use std::sync::Arc;

use super::{
    Clients, LONG, Outcome, Violation, ensure, fresh_key, granted, refused, request, state,
    steps::release, violation,
};
use leasehold::{
    Fence, Mode, Store,
    store::{AcquireRequest, ConvertAnswer, ConvertRequest},
};

/// A conversion changes only a lease with the fence that it names, so a late one undoes no later upgrade, and no
/// downgrade after that. A repeated one is answered as the first.
pub async fn a_late_conversion_undoes_no_later_one(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("late conversions")?;
    let lease = request(&key, "the holder", LONG);
    let earlier = granted(first, &lease).await?.fence;
    let upgrade = || ConvertRequest::upgrade(key.clone(), lease.lease);
    let downgrade = || ConvertRequest::downgrade(key.clone(), lease.lease);
    for _ in 0..2 {
        let fence = converted(first, downgrade().of_fence(earlier)).await?;
        ensure!(fence == earlier, "a downgrade of {earlier} has {fence}");
    }
    let later = converted(first, upgrade().of_fence(earlier)).await?;
    ensure!(later > earlier, "an upgrade of {earlier} has {later}");
    let again = converted(first, upgrade().of_fence(earlier)).await?;
    ensure!(
        again == later,
        "a repeated upgrade has {again}, not {later}"
    );

    let reads = request(&key, "a reader", LONG).shared();
    let late = downgrade().of_fence(earlier);
    stays(second, &lease, late, (Mode::Exclusive, later)).await?;
    refused(second, &reads).await?;

    converted(first, downgrade().of_fence(later)).await?;
    let late = || upgrade().of_fence(earlier);
    stays(second, &lease, late(), (Mode::Shared, later)).await?;
    let greatest = granted(second, &reads).await?.fence;
    stays(second, &lease, late(), (Mode::Shared, later)).await?;
    release(second, &reads).await?;
    stays(first, &lease, late(), (Mode::Shared, later)).await?;
    let last = converted(first, upgrade().of_fence(later)).await?;
    ensure!(
        last > greatest,
        "an upgrade has {last}, a reader {greatest}"
    );
    stays(
        second,
        &lease,
        downgrade().of_fence(later),
        (Mode::Exclusive, last),
    )
    .await?;
    converted(first, downgrade()).await?;
    Ok(())
}

/// Converts a lease, and returns its fence.
async fn converted(store: &Arc<dyn Store>, request: ConvertRequest) -> Result<Fence, Violation> {
    match store.convert(&request).await? {
        ConvertAnswer::Converted(grant) => Ok(grant.fence),
        answer => violation(format!("{request:?} was answered {answer:?}")),
    }
}

/// Sends a conversion that names another fence than the lease has. The lease keeps its mode and its fence.
async fn stays(
    store: &Arc<dyn Store>,
    lease: &AcquireRequest,
    late: ConvertRequest,
    (mode, fence): (Mode, Fence),
) -> Outcome {
    let answer = store.convert(&late).await?;
    ensure!(
        matches!(&answer, ConvertAnswer::OtherFence(grant) if grant.fence == fence),
        "{late:?} of a lease with {fence} was answered {answer:?}"
    );
    let found = state(store, &lease.key).await?;
    let mine = found.holders.iter().find(|it| it.lease == lease.lease);
    ensure!(
        mine.is_some_and(|mine| mine.mode == mode && mine.fence == fence),
        "after {late:?} there are {:?}",
        found.holders
    );
    Ok(())
}
