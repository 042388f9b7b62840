//! Conversions: a shared lease becomes exclusive, or an exclusive one shared.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};
use tracing::Instrument;

use super::guard::Lease;
use crate::{
    key::Keys,
    lease_state::{LeaseState, Opposites},
    messages::{ConvertAnswer, ConvertRequest},
    model::{Conversion, Error, Held, LossReason, Mode},
    retry::Tries,
    runtime,
    store::Store,
    telemetry,
};

/// The answer to [`Lease::upgrade`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an upgrade may be refused"]
pub enum Upgrade {
    /// The lease is exclusive.
    Exclusive,
    /// These other leases hold the key too, so the lease is shared. An upgrade takes no place in the queue of the key,
    /// so readers that come and go can keep it off for long.
    Held(Held),
}

impl Lease {
    /// Makes a shared lease exclusive, if no other lease holds the key. The call does not wait for other holders,
    /// because two shared holders that both upgrade would wait for each other for ever. A lease that is already
    /// exclusive does not change, unless a [downgrade](Lease::downgrade) of it had no answer: that downgrade is carried
    /// out first, so that it cannot undo the upgrade later. Another shared lease may be granted in between, so after a
    /// refusal, an error, or a drop of the future such a lease may be shared: [`mode`](Lease::mode) tells.
    ///
    /// The upgrade of a shared lease gives it a new [`fence`](Lease::fence), which is greater than the fences of all
    /// leases that shared the key with it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore, Upgrade};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let lease = leases.acquire("index:books", Duration::from_secs(30)).shared().await?;
    /// match lease.upgrade().await? {
    ///     Upgrade::Exclusive => println!("this process can write, with fence {}", lease.fence()),
    ///     Upgrade::Held(held) => println!("{} reads too", held.owner()),
    /// }
    /// # lease.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConversion`] for a lease of permits; otherwise as for [`renew`](Lease::renew). After an
    /// error that [is ambiguous](Error::is_ambiguous) the lease may be exclusive in the store although
    /// [`mode`](Lease::mode) says that it is shared: repeat the call, or [downgrade](Lease::downgrade) it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop an upgrade that was sent. [`mode`](Lease::mode) changes when the
    /// upgrade is answered.
    pub async fn upgrade(&self) -> Result<Upgrade, Error> {
        Ok(match self.convert(Conversion::Upgrade).await? {
            None => Upgrade::Exclusive,
            Some(held) => Upgrade::Held(held),
        })
    }

    /// Makes an exclusive lease shared, so that the readers that wait before the next writer are granted the key. A
    /// lease that is already shared does not change. The fence does not change, unless an [upgrade](Lease::upgrade) of
    /// the lease had no answer: that upgrade is carried out first, so that it cannot undo the downgrade later. If other
    /// leases share the key, it cannot be carried out, and may still make this lease exclusive when they have ended.
    /// Then downgrade it again.
    ///
    /// If the lease [stays with this process](crate::Acquire::sticky) and an exclusive
    /// [reentrant](crate::Acquire::reentrant) one is inside, other processes still find the key held exclusively. Call
    /// this again when the inner lease is over.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConversion`] for a lease of permits; otherwise as for [`renew`](Lease::renew). After an
    /// error that [is ambiguous](Error::is_ambiguous) the lease may be shared in the store although
    /// [`mode`](Lease::mode) says that it is exclusive: repeat the call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop a downgrade that was sent. [`mode`](Lease::mode) changes when the
    /// downgrade is answered.
    pub async fn downgrade(&self) -> Result<(), Error> {
        match self.convert(Conversion::Downgrade).await? {
            None => Ok(()),
            // Other holders never refuse a downgrade. Only a lease of permits cannot become shared.
            Some(_) => Err(Error::InvalidConversion),
        }
    }

    /// Converts the lease, and reports the outcome to telemetry. `Some` with the other holders if they prevent the
    /// conversion.
    async fn convert(&self, wanted: Conversion) -> Result<Option<Held>, Error> {
        let mode = wanted.mode();
        let span = telemetry::convert(self.state.fields(), mode);
        let converted = self.try_to_convert(wanted).instrument(span.clone()).await;
        telemetry::converted(&span, self.state.fields(), mode, &converted);
        converted
    }

    async fn try_to_convert(&self, wanted: Conversion) -> Result<Option<Held>, Error> {
        if self.mode() == Mode::Permits {
            return Err(Error::InvalidConversion);
        }
        self.ensure_live(Instant::now())?;
        let is_upgrade = wanted == Conversion::Upgrade;
        if is_upgrade {
            // A downgrade that was not waited for may have made the lease in the store shared.
            if self.mode() == Mode::Exclusive && self.keys.knows_mode(&self.state) {
                return Ok(None);
            }
            if let Some(held) = self.keys.others(&self.state) {
                return Ok(Some(held));
            }
        }
        // From now on nobody gets a guard beside this one. If somebody has got one meanwhile, the lease is theirs too.
        if let Some(held) = self.keys.begin_to_convert(&self.state) {
            if is_upgrade {
                return Ok(Some(held));
            }
            if held.holders().iter().any(|it| it.mode == Mode::Exclusive) {
                // The lease is exclusive because another task of the same owner needs it.
                self.state.converted_to(Mode::Shared, self.fence());
                return Ok(None);
            }
        }
        self.keys.conversion_sent(&self.state);
        self.convert_stored(wanted).await
    }

    async fn convert_stored(&self, wanted: Conversion) -> Result<Option<Held>, Error> {
        let stored = self.state.stored();
        let limit = || self.keys.call_timeout().min(self.remaining());
        // A call whose future is not polled any more delays the others for no longer than a request would. After that
        // they go on beside it: what it has sent counts as unanswered.
        let _one_at_a_time = timeout(limit(), stored.converting.lock()).await;
        let mut tries = Tries::default();
        let mut opposites = Opposites::default();
        let mut wakes_readers = None;
        loop {
            self.ensure_live(Instant::now())?;
            let (request, is_opposite) = stored.next_conversion(wanted, opposites);
            let (.., unanswered) = stored.mode_and_conversions();
            // A reader that is granted the key between two of these requests would be in the way of the second one.
            let is_between = is_opposite || wanted == Conversion::Downgrade && unanswered.upgrades;
            if is_between {
                wakes_readers.get_or_insert_with(|| WakesReaders(&self.keys, stored));
            }
            let named = request.fence;
            match self.send_conversion(request, limit(), !is_between).await {
                Ok(ConvertAnswer::Converted(_)) if is_opposite => opposites.done(named),
                Ok(ConvertAnswer::Converted(_)) => {
                    opposites.wanted_is_done();
                    // An opposite one without an answer may still undo it.
                    if !stored.next_conversion(wanted, opposites).1 {
                        return Ok(None);
                    }
                }
                // The upgrade before a downgrade is refused, so the lease is shared.
                Ok(ConvertAnswer::Held(_)) if is_opposite && wanted == Conversion::Downgrade => {
                    return Ok(None);
                }
                Ok(ConvertAnswer::Held(held)) => return Ok(Some(held)),
                // The lease has another fence than the one that the request names, because of another conversion.
                Ok(_) => {}
                Err(error) => tries.pause(error, self.remaining()).await?,
            }
        }
    }

    /// Converts the lease in the store, and its guard with it, whether or not the holder still waits. Waits at most
    /// `limit` for the answer, and fails if it says that the lease is lost. After a downgrade the first waiter for the key
    /// asks at once, if `wakes`.
    async fn send_conversion(
        &self,
        request: ConvertRequest,
        limit: Duration,
        wakes: bool,
    ) -> Result<ConvertAnswer, Error> {
        // Without a runtime nothing is sent, so the call must fail before the conversion is counted as sent.
        Handle::try_current().map_err(|_| Error::NoRuntime)?;
        self.state.stored().conversion_sent(&request);
        let (keys, guard) = (self.keys.clone(), self.state.clone());
        let converting = |store: Arc<dyn Store>| async move {
            let answer = runtime::caught(store.convert(&request)).await;
            let (stored, wanted) = (guard.stored(), request.conversion);
            let is_own = apply(&guard, &request, &answer);
            let lost = |reason| Err(stored.lost_error(stored.lose(reason)));
            match answer? {
                _ if !is_own => lost(LossReason::TakenOver),
                answer @ ConvertAnswer::Converted(_) => {
                    if wanted == Conversion::Downgrade && wakes {
                        keys.freed_here(stored.key());
                    }
                    // A close may have ended the lease meanwhile, or the answer came too late.
                    match guard.loss(Instant::now()) {
                        None => Ok(answer),
                        Some(reason) => Err(guard.lost_error(reason)),
                    }
                }
                ConvertAnswer::Expired => lost(LossReason::Expired),
                ConvertAnswer::TakenOver => lost(LossReason::TakenOver),
                answer @ (ConvertAnswer::Held(_) | ConvertAnswer::OtherFence(_)) => Ok(answer),
            }
        };
        self.keys.call("convert", limit, converting).await
    }
}

/// Applies the answer to a conversion to the lease and to its guard. Returns whether it is the answer for this lease.
fn apply(
    guard: &Arc<LeaseState>,
    request: &ConvertRequest,
    answer: &Result<ConvertAnswer, Error>,
) -> bool {
    let (stored, wanted) = (guard.stored(), request.conversion);
    let found = match answer {
        Ok(ConvertAnswer::Converted(grant)) => Some((wanted.mode(), grant.fence)),
        Ok(ConvertAnswer::OtherFence(grant)) => Some((wanted.opposite().mode(), grant.fence)),
        // Only the upgrade of a shared lease is refused.
        Ok(ConvertAnswer::Held(_)) => request.fence.map(|fence| (Mode::Shared, fence)),
        Ok(ConvertAnswer::Expired | ConvertAnswer::TakenOver) | Err(_) => None,
    };
    let is_own = found.is_none_or(|(mode, fence)| stored.apply_conversion(request, mode, fence));
    if found.is_some() {
        apply_to_guard(stored, guard);
    }
    // After another error the conversion may have been carried out, or may be carried out later.
    // So it may after `Overloaded`: a driver may send it to several nodes, and this is the answer of the last one.
    if let Ok(_) | Err(Error::Unreachable { .. } | Error::Denied { .. }) = answer {
        stored.conversion_answered(request);
    }
    is_own
}

/// Applies the mode and the fence of the lease in the store to its guard. If the lease is shared, no other guard under it
/// is exclusive: one may have become so by a request that was carried out before.
fn apply_to_guard(stored: &LeaseState, guard: &LeaseState) {
    loop {
        let (mode, fence) = stored.mode_and_fence();
        guard.converted_to(mode, fence);
        if mode == Mode::Shared {
            let all = stored.guards().into_iter();
            all.for_each(|guard| guard.converted_to(mode, guard.fence()));
        }
        // Another answer may have been applied meanwhile.
        if stored.mode_and_fence() == (mode, fence) {
            return;
        }
    }
}

/// Its drop wakes the first waiter for the key of a lease, if the lease is shared.
struct WakesReaders<'a>(&'a Keys, &'a LeaseState);

impl Drop for WakesReaders<'_> {
    fn drop(&mut self) {
        if self.1.mode() == Mode::Shared {
            self.0.freed_here(self.1.key());
        }
    }
}
