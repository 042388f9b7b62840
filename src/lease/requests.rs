//! The renewals and conversions for which the holder waits. Each runs to its end in a task of its own, because its
//! outcome changes the lease, whether or not the holder still waits.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::Instant};

use crate::{
    lease_state::LeaseState,
    messages::{ConvertAnswer, ConvertRequest, only_renewal},
    model::{Conversion, Error, Held, LossReason, Mode},
    runtime::{self, suspension::SentAt},
    sticky::Stay,
    store::Store,
    waiters::WaitQueues,
};

/// Renews one lease, and waits at most `limit` for the answer.
pub(crate) async fn renew_now(
    store: Arc<dyn Store>,
    state: Arc<LeaseState>,
    limit: Duration,
) -> Result<(), Error> {
    let (renewed, named) = (state.clone(), store.clone());
    let name = || named.name();
    let outcome = runtime::call("renew", limit, name, async move {
        let sent = SentAt::now();
        let answers = runtime::caught(store.renew(&[renewed.begin_renewal()])).await;
        renewed.apply_renewal(sent, only_renewal(answers))
    })
    .await;
    if let Err(error @ Error::TimedOut { .. }) = &outcome {
        state.failed(error.clone());
    }
    outcome
}

/// What came of a conversion.
pub(crate) enum Converted {
    /// The lease has the mode that the request asks for.
    Yes,
    /// Other holders prevent it.
    Held(Held),
    /// The lease has another fence than the one that the request names, because of another conversion.
    OtherFence,
}

/// Converts one lease in the store, and the guard's lease with it, which is another one if it was granted from memory.
/// Waits at most `limit` for the answer. After a downgrade the first waiter of `to_wake` sends a request.
pub(crate) async fn convert(
    (store, to_wake): (Arc<dyn Store>, Option<Arc<WaitQueues>>),
    (state, guarded, stay): (Arc<LeaseState>, Arc<LeaseState>, Option<Arc<Stay>>),
    request: ConvertRequest,
    limit: Duration,
) -> Result<Converted, Error> {
    // Without a runtime nothing is sent, so the call must fail before the conversion is counted as sent.
    Handle::try_current().map_err(|_| Error::NoRuntime)?;
    state.conversion_sent(&request);
    let named = store.clone();
    let name = || named.name();
    runtime::call("convert", limit, name, async move {
        let answer = runtime::caught(store.convert(&request)).await;
        let wanted = request.conversion;
        let found = match &answer {
            Ok(ConvertAnswer::Converted(grant)) => Some((wanted.mode(), grant.fence)),
            Ok(ConvertAnswer::OtherFence(grant)) => Some((wanted.opposite().mode(), grant.fence)),
            // Only the upgrade of a shared lease is refused.
            Ok(ConvertAnswer::Held(_)) => request.fence.map(|fence| (Mode::Shared, fence)),
            Ok(ConvertAnswer::Expired | ConvertAnswer::TakenOver) | Err(_) => None,
        };
        let is_own =
            found.is_none_or(|(mode, fence)| state.apply_conversion(&request, mode, fence));
        if found.is_some() {
            apply_to_guard(&state, &guarded, stay.as_deref());
        }
        // After another error the conversion may have been carried out, or may be carried out later.
        // So it may after `Overloaded`: a driver may send it to several nodes, and this is the answer of the last one.
        if let Ok(_) | Err(Error::Unreachable { .. } | Error::Denied { .. }) = &answer {
            state.conversion_answered(&request);
        }
        let lost = |reason| Err(state.lost_error(state.lose(reason)));
        match answer? {
            _ if !is_own => lost(LossReason::TakenOver),
            ConvertAnswer::Converted(_) => {
                if let (Conversion::Downgrade, Some(queues)) = (wanted, to_wake) {
                    queues.wake_first(state.key());
                }
                // A close may have ended the lease meanwhile, or the answer came too late.
                match guarded.loss(Instant::now()) {
                    None => Ok(Converted::Yes),
                    Some(reason) => Err(guarded.lost_error(reason)),
                }
            }
            ConvertAnswer::Held(held) => Ok(Converted::Held(held)),
            ConvertAnswer::OtherFence(_) => Ok(Converted::OtherFence),
            ConvertAnswer::Expired => lost(LossReason::Expired),
            ConvertAnswer::TakenOver => lost(LossReason::TakenOver),
        }
    })
    .await
}

/// Applies the mode and the fence of the lease in the store to the guard's lease, if that was granted from memory. If
/// the lease in the store is shared, no other lease under the stay is exclusive: one may have become so by a request
/// that was carried out before.
fn apply_to_guard(state: &LeaseState, guarded: &LeaseState, stay: Option<&Stay>) {
    loop {
        let (mode, fence) = state.mode_and_fence();
        if guarded.is_local() {
            guarded.converted_to(mode, fence);
        }
        if let (Some(stay), Mode::Shared) = (stay, mode) {
            stay.make_shared();
        }
        // Another answer may have been applied meanwhile.
        if state.mode_and_fence() == (mode, fence) {
            return;
        }
    }
}
