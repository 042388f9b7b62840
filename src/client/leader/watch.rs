//! `Leading`: who leads, as those who follow hear of it from a task that reads it from time to time, and at once when the
//! key was freed.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::{sync::watch, time::timeout};

use crate::{
    client::call::call,
    lease::LeaseRegistry,
    model::{Error, Fence, Key, LockState},
    runtime,
    store::Store,
    telemetry,
    waiters::{Follower, ensure_listener},
};

/// The pause between two reads. With the time that a read takes, a follower hears of a new leader within a second.
const PAUSE: Duration = Duration::from_millis(500);
/// The first pause after the key was freed: the next leader asks for it at the same moment as this reads.
const SHORTEST: Duration = Duration::from_millis(10);

/// Who leads, as [`Leader::watch`](crate::Leader::watch) shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leading {
    /// The owner of the leader: of its client, or the one given to [`Leader::owner`](crate::Leader::owner).
    pub owner: Arc<str>,
    /// The note that the leader gave to [`Leader::note`](crate::Leader::note).
    pub note: Option<Arc<str>>,
    /// The fencing token of the term.
    pub fence: Fence,
    /// When the term began, on the server's clock.
    pub since: DateTime<Utc>,
}

impl Leading {
    /// The leader in this state of the key. `None` if nobody has the key.
    fn of(state: LockState) -> Option<Self> {
        let leader = state.holders.into_iter().next()?;
        Some(Self {
            owner: leader.owner,
            note: leader.note,
            fence: leader.fence,
            since: leader.acquired_at,
        })
    }
}

/// Starts a task that reads who leads. The receiver has lost its sender if the key is invalid, or there is no runtime.
pub(super) fn watch(
    registry: &Arc<LeaseRegistry>,
    key: Result<Key, Error>,
) -> watch::Receiver<Option<Leading>> {
    let (leading, receiver) = watch::channel(None);
    if let Ok(key) = key {
        // Without a runtime the sender is dropped here, which the receiver notices.
        let _ = runtime::spawn(follow(registry.clone(), key, leading));
    }
    receiver
}

/// Reads who leads until the client closes, or all receivers are dropped.
async fn follow(registry: Arc<LeaseRegistry>, key: Key, leading: watch::Sender<Option<Leading>>) {
    // A read that was sent goes on in a task of its own if this stops waiting for it.
    tokio::select! {
        () = registry.lifecycle.closing().cancelled() => {}
        () = leading.closed() => {}
        () = read_on(&registry, &key, &leading) => {}
    }
}

async fn read_on(
    registry: &Arc<LeaseRegistry>,
    key: &Key,
    leading: &watch::Sender<Option<Leading>>,
) {
    let follower = registry.queues.follow(key);
    let mut has_failed = false;
    let mut pause = PAUSE;
    loop {
        ensure_listener(
            &registry.queues,
            &registry.store,
            registry.lifecycle.closing(),
        );
        match read(registry, key).await {
            Ok(now) => {
                has_failed = false;
                if now.is_some() {
                    pause = PAUSE;
                }
                publish(key, leading, now);
            }
            Err(error) => {
                // The others in a row say the same, and each is an event of its call.
                if !has_failed {
                    telemetry::leader_unknown(key, &error);
                }
                has_failed = true;
            }
        }
        pause = pause_before_next(&follower, pause).await;
    }
}

/// Waits until who leads is to be read again. Gives the pause after that read, if it finds no leader.
async fn pause_before_next(follower: &Follower, pause: Duration) -> Duration {
    match timeout(pause, follower.freed()).await {
        Ok(()) => SHORTEST,
        Err(_) => (pause * 2).min(PAUSE),
    }
}

async fn read(registry: &LeaseRegistry, key: &Key) -> Result<Option<Leading>, Error> {
    let asked = key.clone();
    let work = async move |store: Arc<dyn Store>| store.inspect(&asked).await;
    let state = call(registry, "inspect", Some(key), work).await?;
    Ok(state.and_then(Leading::of))
}

/// Tells the receivers who leads now, if that has changed.
fn publish(key: &Key, leading: &watch::Sender<Option<Leading>>, now: Option<Leading>) {
    let is_new = *leading.borrow() != now;
    if is_new {
        let leader = now.as_ref().map(|now| (&*now.owner, now.fence));
        telemetry::leader_changed(key, leader);
        leading.send_replace(now);
    }
}
