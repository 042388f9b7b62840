//! Looks at the leases that stay with this process: whether other processes wait for their keys, and whether they are
//! still held. `stay_task.rs` looks twice a second. If the store can send notifications, a second task listens for them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::Duration,
};

use futures::FutureExt;
use tokio::time::Instant;

use super::registry::LeaseRegistry;
use crate::{
    messages::{LookAnswer, LookRequest, MAX_RENEWALS, renewal_left_out},
    model::{Cause, Error, Key},
    runtime::{
        self,
        listener::{Listener, Opening, listen},
        suspension::SentAt,
    },
    sticky::Stay,
    store::Store,
    telemetry::{KeyStream, StayEndReason},
};

/// The keys that other processes wait for, and whether the store has answered for all keys.
pub(super) type WaitedFor = (Vec<Key>, Result<(), Error>);

/// Looks at the leases that stay, and at those that are used still. The future does not keep the registry.
///
/// A lease that is not held any more by this look, because it was evicted for example, is renewed. The answer to that
/// renewal counts, because a look may be out of date: it ends the lease, and all that was granted from memory under it.
pub(super) fn look(registry: &LeaseRegistry) -> impl Future<Output = WaitedFor> + use<> {
    let ended = registry.stays.ended().into_iter();
    let used = ended.filter(|stay| !stay.is_settled());
    let stays: Vec<_> = registry.stays.all().into_iter().chain(used).collect();
    let (store, limit) = (registry.store.clone(), registry.call_timeout);
    async move {
        let (mut all, mut outcome) = (Vec::new(), Ok(()));
        for some in stays.chunks(MAX_RENEWALS) {
            match look_at(&store, some, limit).await {
                Ok(answers) => {
                    let (mut gone, looked) = (Vec::new(), some.iter().zip(answers));
                    for (stay, answer) in looked {
                        if answer.is_waited_for {
                            all.push(stay.key().clone());
                        }
                        if !answer.is_held && !stay.is_settled() {
                            gone.push(stay.clone());
                        }
                    }
                    renew(&store, gone, limit).await;
                }
                Err(error) => outcome = Err(error),
            }
        }
        (all, outcome)
    }
}

async fn look_at(
    store: &Arc<dyn Store>,
    stays: &[Arc<Stay>],
    limit: Duration,
) -> Result<Vec<LookAnswer>, Error> {
    let request = |stay: &Arc<Stay>| LookRequest::new(stay.key().clone(), stay.stored().id());
    let requests: Vec<_> = stays.iter().map(request).collect();
    let asked = store.clone();
    let looked = async move { runtime::caught(asked.look(&requests)).await };
    let answers = runtime::call("look", limit, || store.name(), looked).await?;
    if answers.len() == stays.len() {
        return Ok(answers);
    }
    Err(Error::Interrupted {
        store: "the store",
        source: Cause::text("its answers to a look do not match the requests"),
    })
}

/// Renews these leases, and applies each answer to its lease.
async fn renew(store: &Arc<dyn Store>, stays: Vec<Arc<Stay>>, limit: Duration) {
    if stays.is_empty() {
        return;
    }
    let asked = store.clone();
    let renewed = async move {
        let requests: Vec<_> = stays.iter().map(|it| it.stored().begin_renewal()).collect();
        let sent = SentAt::now();
        let mut answers = runtime::caught(asked.renew(&requests)).await?.into_iter();
        for stay in stays {
            let answer = answers.next().unwrap_or_else(|| Err(renewal_left_out()));
            // The subscriber of the application may panic in the events of one lease. The outcome is in the lease.
            let apply = || drop(stay.stored().apply_renewal(sent, answer));
            let _ = catch_unwind(AssertUnwindSafe(apply));
        }
        Ok(())
    };
    // Without an answer, the renewals of the leases go on.
    let _ = runtime::call("renew", limit, || store.name(), renewed).await;
}

/// Starts the task that listens to the store, unless it runs, or the store cannot tell. A key must stay already, so
/// that a listener which ends meanwhile finds it.
pub(super) fn ensure_listening(registry: &Arc<LeaseRegistry>) {
    if let Some(permit) = registry.stays.listener.permit() {
        let listener = AwaitedListener(Arc::downgrade(registry));
        let closing = registry.lifecycle.closing().clone();
        let listening = listen(listener, permit, closing);
        registry.renewals.run_beside(listening);
    }
}

/// Sends back the keys that the store tells. The registry is not kept while the task waits for the store.
struct AwaitedListener(Weak<LeaseRegistry>);

impl Listener for AwaitedListener {
    type Key = Key;
    const STREAM: KeyStream = KeyStream::Awaited;
    const OPERATION: &'static str = "awaited";

    fn open(&self) -> Option<Opening<Key>> {
        let store = self.0.upgrade()?.store.clone();
        Some(async move { store.awaited().await }.boxed())
    }

    fn store_name(&self) -> String {
        let registry = self.0.upgrade();
        registry.map_or_else(|| "the store".to_owned(), |it| it.store.name())
    }

    fn is_needed(&self) -> bool {
        let registry = self.0.upgrade();
        registry.is_some_and(|registry| registry.stays.has_any())
    }

    fn receive(&self, keys: Vec<Key>) {
        if let Some(registry) = self.0.upgrade() {
            keys.iter().for_each(|key| registry.recall(key));
        }
    }
}

impl LeaseRegistry {
    /// Sends back the lease of this key, if it stays here, because another process waits for the key.
    pub(super) fn recall(&self, key: &Key) {
        if let Some(stay) = self.stays.get(key) {
            self.stays.recalled(key, Instant::now());
            // The subscriber of the application may panic in the event. The other keys go back all the same.
            let end = || self.end_stay(&stay, StayEndReason::WaitedFor);
            let _ = catch_unwind(AssertUnwindSafe(end));
        }
    }
}
