//! The renewals and conversions for which the holder waits. Each runs to its end in a task of its own, because its
//! outcome changes the lease, whether or not the holder still waits.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::Instant};

use crate::{
    key::Keys,
    lease_state::LeaseState,
    messages::{ConvertAnswer, ConvertRequest, only_renewal},
    model::{Conversion, Error, Held, LossReason, Mode},
    runtime::{self, suspension::SentAt},
    store::Store,
};

/// Renews the lease of one guard, and waits at most `limit` for the answer. An answer that comes later extends both too.
pub(crate) async fn renew_now(
    keys: Arc<Keys>,
    guard: Arc<LeaseState>,
    limit: Duration,
) -> Result<(), Error> {
    let stored = guard.stored().clone();
    let (renewed, here) = (stored.clone(), keys.clone());
    let renewing = |store: Arc<dyn Store>| async move {
        let sent = SentAt::now();
        let answers = runtime::caught(store.renew(&[renewed.begin_renewal()])).await;
        renewed.apply_renewal(sent, only_renewal(answers))?;
        here.extend(&guard, false)
    };
    let outcome = keys.call("renew", limit, renewing).await;
    if let Err(error @ Error::TimedOut { .. }) = &outcome {
        stored.failed(error.clone());
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

/// Converts one lease in the store, and its guard with it. Waits at most `limit` for the answer. After a downgrade the
/// first waiter for the key asks at once, if `wakes`.
pub(crate) async fn convert(
    (keys, wakes): (Arc<Keys>, bool),
    (state, guarded): (Arc<LeaseState>, Arc<LeaseState>),
    request: ConvertRequest,
    limit: Duration,
) -> Result<Converted, Error> {
    // Without a runtime nothing is sent, so the call must fail before the conversion is counted as sent.
    Handle::try_current().map_err(|_| Error::NoRuntime)?;
    state.conversion_sent(&request);
    let here = keys.clone();
    let converting = |store: Arc<dyn Store>| async move {
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
            apply_to_guard(&here, &state, &guarded);
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
                if wanted == Conversion::Downgrade && wakes {
                    here.freed_here(state.key());
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
    };
    keys.call("convert", limit, converting).await
}

/// Applies the mode and the fence of the lease in the store to its guard. If the lease is shared, no other guard under it
/// is exclusive: one may have become so by a request that was carried out before.
fn apply_to_guard(keys: &Keys, state: &LeaseState, guarded: &LeaseState) {
    loop {
        let (mode, fence) = state.mode_and_fence();
        guarded.converted_to(mode, fence);
        if mode == Mode::Shared {
            keys.make_shared(state);
        }
        // Another answer may have been applied meanwhile.
        if state.mode_and_fence() == (mode, fence) {
            return;
        }
    }
}
