//! Listeners: tasks that receive keys from a stream of the store while this process needs them. There are two streams:
//! of the keys that become free, and of those for which processes begin to wait (`key/looking.rs`). A listener opens its
//! stream again after an error.
//!
//! Invariants:
//!
//! - A slot has at most one listener: the task that has its permit.
//! - A need has a listener if it begins before the slot is asked for a permit. If the slot refuses the permit, the
//!   listener that has it looks for needs once more after its end.
//! - A listener ends only between two items of its stream, or after [`SILENCE`]. If a stream that still has items were
//!   dropped while it waits for one, a request would be cut off that the server may still answer.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream::BoxStream};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::call::{call, report};
use crate::{
    model::Error,
    random, retry,
    telemetry::{self, KeyStream},
};

/// How long a listener runs after the last need for it. Another need may come soon.
const LINGER: Duration = Duration::from_secs(30);
/// How long the stream of a store may be silent. The stream has an item every few seconds, also if there is no key.
/// So a stream that is silent for longer has lost its connection, perhaps without an error.
const SILENCE: Duration = Duration::from_secs(30);

/// After a stream that was open for at least this long, the pauses start again with the shortest one.
const LASTING: Duration = Duration::from_secs(10);
/// The pause after an error that a retry does not fix, such as a missing permission. An operator may grant it
/// meanwhile.
const REFUSED: Duration = Duration::from_secs(60);

/// A call that opens a stream of a store. Its outcome is `None` if the store has no such stream.
pub(crate) type Opening<K> =
    BoxFuture<'static, Result<Option<BoxStream<'static, Result<Vec<K>, Error>>>, Error>>;

/// What a listener listens to, and for whom.
pub(crate) trait Listener: Send + Sync {
    /// What the items of the stream are lists of.
    type Key: Send + 'static;
    /// The stream, as events report it.
    const STREAM: KeyStream;
    /// The name of the call that opens the stream.
    const OPERATION: &'static str;

    /// The name of the store, and the call that opens the stream. `None` if the client has gone.
    fn open(&self) -> Option<(String, Opening<Self::Key>)>;

    /// Whether the client needs the keys now.
    fn is_needed(&self) -> bool;

    /// Records that keys are missed: those from before the stream was opened, or those from now on, because it is closed
    /// when the client has not needed the keys.
    fn missed(&self) {}

    /// Receives an item of the stream.
    fn receive(&self, keys: Vec<Self::Key>);
}

/// Whether a listener runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ListenerState {
    /// No listener runs.
    #[default]
    None,
    /// A listener runs, but has no open stream.
    Closed,
    /// A listener runs, and has an open stream.
    Open,
    /// The store has no such stream, so no other listener is started.
    Unsupported,
}

/// The slot of a listener: at most one runs at a time. All clones are the same slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListenerSlot(Arc<Mutex<ListenerState>>);

impl ListenerSlot {
    /// The permit for a listener. `None` if a listener has it already, or the store has no such stream.
    pub(crate) fn permit(&self) -> Option<ListenerPermit> {
        let mut state = self.0.lock();
        if *state != ListenerState::None {
            return None;
        }
        *state = ListenerState::Closed;
        Some(ListenerPermit(self.clone()))
    }

    /// Whether a listener has an open stream.
    pub(crate) fn is_open(&self) -> bool {
        *self.0.lock() == ListenerState::Open
    }
}

/// Allows a task to be the listener of a slot. Its drop, also by a panic or with its runtime, allows another one,
/// unless the store has no such stream.
pub(crate) struct ListenerPermit(ListenerSlot);

impl ListenerPermit {
    fn set(&self, state: ListenerState) {
        *self.0.0.lock() = state;
    }
}

impl Drop for ListenerPermit {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        if *state != ListenerState::Unsupported {
            *state = ListenerState::None;
        }
    }
}

/// Passes the keys of the stream to the listener. Ends when the client closes or has gone, or has not needed the keys
/// for [`LINGER`].
pub(crate) async fn listen(
    listener: impl Listener,
    permit: ListenerPermit,
    closing: CancellationToken,
) {
    let slot = permit.0.clone();
    let mut permit = Some(permit);
    while let Some(held) = permit {
        listen_while_needed(&listener, &held, &closing).await;
        drop(held);
        let is_needed = !closing.is_cancelled() && listener.is_needed();
        permit = is_needed.then(|| slot.permit()).flatten();
    }
}

/// Opens the stream again and again, and passes its keys to the listener, until they are not needed.
async fn listen_while_needed<L: Listener>(
    listener: &L,
    permit: &ListenerPermit,
    closing: &CancellationToken,
) {
    let (mut failures, mut unneeded_since) = (0, None);
    let mut note_whether_over =
        || closing.is_cancelled() || note_unneeded(listener, &mut unneeded_since);
    while !note_whether_over() {
        let Some((store, opening)) = listener.open() else {
            return;
        };
        let error = match call(L::OPERATION, SILENCE, || store, opening).await {
            Ok(Some(mut keys)) => {
                let opened = Instant::now();
                permit.set(ListenerState::Open);
                listener.missed();
                telemetry::listener_opened(L::STREAM);
                let ended = read(listener, &mut keys, &mut note_whether_over).await;
                permit.set(ListenerState::Closed);
                let Err(error) = ended else {
                    return listener.missed();
                };
                if opened.elapsed() >= LASTING {
                    failures = 0;
                }
                error
            }
            Ok(None) => {
                permit.set(ListenerState::Unsupported);
                return telemetry::listener_unsupported(L::STREAM);
            }
            Err(error) => Some(error),
        };
        let mut pause = retry::pause(failures, retry::BACKGROUND, random::fraction());
        failures = failures.saturating_add(1);
        if let Some(error) = error {
            if !error.is_retryable() {
                pause = REFUSED;
            }
            telemetry::listener_failed(L::STREAM, &error);
        }
        // The result only says whether the client closes, which the loop looks at next.
        let _ = closing.run_until_cancelled(sleep(pause)).await;
    }
}

/// Passes the keys of a stream to the listener, until they are not needed. Fails if the stream breaks, with its error if
/// there is one.
async fn read<L: Listener>(
    listener: &L,
    keys: &mut BoxStream<'static, Result<Vec<L::Key>, Error>>,
    is_over: &mut impl FnMut() -> bool,
) -> Result<(), Option<Error>> {
    loop {
        let Ok(Some(item)) = timeout(SILENCE, keys.next()).await else {
            return Err(None);
        };
        let item = report(L::OPERATION, None, item).await;
        listener.receive(item.map_err(Some)?);
        if is_over() {
            return Ok(());
        }
    }
}

/// Notes in `since` when a call first found that the keys are not needed. Returns whether that is [`LINGER`] ago.
fn note_unneeded(listener: &impl Listener, since: &mut Option<Instant>) -> bool {
    if listener.is_needed() {
        *since = None;
        return false;
    }
    since.get_or_insert_with(Instant::now).elapsed() >= LINGER
}
