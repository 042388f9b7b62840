//! The listener for the keys that become free. It runs while this process has followers, or waiters that need it.

use std::sync::Arc;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

use super::queues::WaitQueues;
use crate::{
    runtime::{
        self,
        listener::{Listener, Opening, listen},
    },
    store::{FreedKey, Store},
    telemetry::KeyStream,
};

/// Starts the listener, unless it runs already or the store cannot report freed keys. The caller's waiter or follower
/// must be in the queues already, with its need, so that a listener which ends meanwhile finds it.
pub(crate) fn ensure_listener(
    queues: &Arc<WaitQueues>,
    store: &Arc<dyn Store>,
    closing: &CancellationToken,
) {
    if let Some(permit) = queues.listener.permit() {
        let listener = FreedListener {
            queues: queues.clone(),
            store: store.clone(),
        };
        // Without a runtime the permit is dropped here, so that a later waiter can start a listener.
        let _ = runtime::spawn(listen(listener, permit, closing.clone()));
    }
}

/// Wakes the waiters and the followers of the keys that the store reports.
struct FreedListener {
    queues: Arc<WaitQueues>,
    store: Arc<dyn Store>,
}

impl Listener for FreedListener {
    type Key = FreedKey;
    const STREAM: KeyStream = KeyStream::Freed;
    const OPERATION: &'static str = "wake-ups";

    fn open(&self) -> Option<Opening<FreedKey>> {
        let store = self.store.clone();
        Some(async move { store.freed().await }.boxed())
    }

    fn store_name(&self) -> String {
        self.store.name()
    }

    fn is_needed(&self) -> bool {
        self.queues.needs_reports()
    }

    fn opened(&self) {
        self.queues.wake_all();
    }

    fn ended(&self) {
        // A waiter that has no need of reports may pause for longer all the same while there are some.
        self.queues.wake_all();
    }

    fn receive(&self, keys: Vec<FreedKey>) {
        keys.iter().for_each(|freed| self.queues.freed(freed));
    }
}
