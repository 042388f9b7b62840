//! `Leading`: which process leads. A task reads the key twice a second, and at once when the key becomes free, and
//! publishes the leader to the receivers.

use std::{pin::pin, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures::future::OptionFuture;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    client::call::inspect,
    key::Keys,
    model::{Error, Fence, Key, LockState, between},
    telemetry,
};

/// The pause between two reads. It leaves time for the read itself, so that a follower sees a new leader within a
/// second.
const PAUSE: Duration = Duration::from_millis(500);
/// The first pause after the key became free. The next leader requests the key at about the same moment as this task
/// reads it, so the first read may still find no leader.
const SHORTEST: Duration = Duration::from_millis(10);

/// The process that leads, as [`Leader::watch`](crate::jobs::Leader::watch) shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leading {
    /// The owner of the leader's lease: the owner of its client, or the one given to
    /// [`Leader::owner`](crate::jobs::Leader::owner).
    pub owner: Arc<str>,
    /// The note that the leader gave to [`Leader::note`](crate::jobs::Leader::note).
    pub note: Option<Arc<str>>,
    /// The fencing token of the term.
    pub fence: Fence,
    /// When the term began, on the server's clock.
    pub since: DateTime<Utc>,
}

impl Leading {
    /// The leader in this state of the key, and how much of its lease remains. `None` if the key is free.
    fn of(state: LockState) -> Option<(Self, Duration)> {
        let leader = state.holders.into_iter().next()?;
        let remaining = between(state.now, leader.expires_at);
        let leading = Self {
            owner: leader.owner,
            note: leader.note,
            fence: leader.fence,
            since: leader.acquired_at,
        };
        Some((leading, remaining))
    }
}

/// Starts the task that reads the key. If the key is invalid, or there is no runtime, no task starts and the channel is
/// closed.
pub(super) fn watch(keys: &Arc<Keys>, key: Result<Key, Error>) -> watch::Receiver<Option<Leading>> {
    let (leading, receiver) = watch::channel(None);
    if let Ok(key) = key {
        let follows = follow(keys.clone(), key, Publisher(leading));
        // Without a runtime the sender is dropped here, which closes the channel.
        if keys.lifecycle.enter().is_ok() {
            keys.lifecycle.spawn(follows);
        }
    }
    receiver
}

/// The sender of the leader. What was read last would stay with the receivers for good, and may be this process. So its
/// drop says that nobody is known to lead, also if the runtime ends, or the subscriber of the application panics.
struct Publisher(watch::Sender<Option<Leading>>);

impl Drop for Publisher {
    fn drop(&mut self) {
        self.0.send_if_modified(|leading| leading.take().is_some());
    }
}

/// Reads the key until the client closes, or all receivers are dropped.
async fn follow(keys: Arc<Keys>, key: Key, leading: Publisher) {
    let leading = &leading.0;
    // If this future stops waiting for a read, the read goes on in a task of its own.
    tokio::select! {
        () = keys.lifecycle.closing.cancelled() => {}
        () = leading.closed() => {}
        () = read_on(&keys, &key, leading) => {}
    }
    publish(&key, leading, None);
}

async fn read_on(keys: &Arc<Keys>, key: &Key, leading: &watch::Sender<Option<Leading>>) {
    let mut follower = keys.follow(key);
    let mut has_failed = false;
    let mut pause = PAUSE;
    // When the lease of the leader that was read last expires.
    let mut expires: Option<Instant> = None;
    loop {
        keys.listen();
        let asked = Instant::now();
        let mut answer = pin!(inspect(keys, key.clone()));
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            // Nobody is known to lead while the store does not answer.
            Some(()) = OptionFuture::from(expires.map(sleep_until)) => {
                publish(key, leading, None);
                answer.await
            }
        };
        let is_over = |end: Option<Instant>| end.is_some_and(|at| at <= Instant::now());
        match answer.map(|state| state.and_then(Leading::of)) {
            Ok(found) => {
                has_failed = false;
                if found.is_some() {
                    pause = PAUSE;
                }
                let (now, remaining) = found.unzip();
                expires = remaining.and_then(|remaining| asked.checked_add(remaining));
                // The answer may have come too late.
                publish(key, leading, now.filter(|_| !is_over(expires)));
            }
            Err(error) => {
                if is_over(expires) {
                    publish(key, leading, None);
                }
                // Only the first of several failures in a row is reported here. Each failed call has an event of its
                // own.
                if !has_failed {
                    telemetry::leader_unknown(key, &error);
                }
                has_failed = true;
            }
        }
        // At the latest it reads again when the lease that was read last expires.
        let left = expires.and_then(|at| at.checked_duration_since(Instant::now()));
        let left = left.filter(|left| !left.is_zero()).unwrap_or(pause);
        let freed = timeout(pause.min(left), follower.freed()).await;
        // This is the pause after the next read, if that finds no leader.
        pause = match freed {
            Ok(()) => SHORTEST,
            Err(_) => (pause * 2).min(PAUSE),
        };
    }
}

/// Publishes the leader to the receivers, if it has changed.
fn publish(key: &Key, leading: &watch::Sender<Option<Leading>>, now: Option<Leading>) {
    let is_new = *leading.borrow() != now;
    if is_new {
        let leader = now.as_ref().map(|now| (&*now.owner, now.fence));
        telemetry::leader_changed(key, leader);
        leading.send_replace(now);
    }
}
