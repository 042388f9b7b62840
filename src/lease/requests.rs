//! The renewals and conversions for which the holder waits. Each runs to its end in a task of its own, because its
//! outcome changes the lease, whether or not the holder still waits.

use std::{sync::Arc, time::Duration};

use tokio::runtime::Handle;

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
    let renewed = state.clone();
    let outcome = runtime::call("renew", limit, async move {
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

/// Converts one lease in the store, and the guard's lease with it, which is another one if it was granted from memory.
/// `Some` with the other holders if they prevent the conversion. Waits at most `limit` for the answer.
pub(crate) async fn convert(
    (store, queues): (Arc<dyn Store>, Arc<WaitQueues>),
    (state, guarded, stay): (Arc<LeaseState>, Arc<LeaseState>, Option<Arc<Stay>>),
    request: ConvertRequest,
    limit: Duration,
) -> Result<Option<Held>, Error> {
    // Without a runtime nothing is sent, so the call must fail before an upgrade is counted as sent.
    Handle::try_current().map_err(|_| Error::NoRuntime)?;
    let upgrade = match request.conversion {
        Conversion::Upgrade => Some(state.upgrade_sent()),
        Conversion::Downgrade => {
            state.downgrade_sent();
            None
        }
    };
    runtime::call("convert", limit, async move {
        let answer = runtime::caught(store.convert(&request)).await;
        if let Ok(ConvertAnswer::Converted(grant)) = &answer {
            state.converted(request.conversion.mode(), grant.fence);
            let (mode, fence) = state.mode_and_fence();
            if guarded.is_local() {
                guarded.converted_to(mode, fence);
            }
            if let (Some(stay), Mode::Shared) = (stay, mode) {
                // Another lease under it may have become exclusive by a request that was carried out before this one.
                stay.make_shared();
            }
        }
        if let Some(number) = upgrade {
            match &answer {
                Ok(ConvertAnswer::Converted(_)) => state.upgrade_carried_out(number),
                Ok(_) | Err(Error::Unreachable { .. } | Error::Denied { .. }) => {
                    state.upgrade_refused(number);
                }
                // The upgrade may have been carried out, so its outcome stays unknown.
                Err(_) => {}
            }
        }
        match answer? {
            ConvertAnswer::Converted(_) => {
                if upgrade.is_none() {
                    queues.wake_first(state.key());
                }
                Ok(None)
            }
            ConvertAnswer::Held(held) => Ok(Some(held)),
            ConvertAnswer::Expired => Err(state.lost_error(state.lose(LossReason::Expired))),
            ConvertAnswer::TakenOver => Err(state.lost_error(state.lose(LossReason::TakenOver))),
        }
    })
    .await
}
