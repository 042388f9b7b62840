//! The holder of a key hands it to the first who waits for it in this process, which takes one request
//! where a release and an acquire take two.
//!
//! The one who waits asks for the key in the place of the lease that makes way, and tells its holder what
//! came of it. Whatever goes wrong, the holder releases its lease as if nobody had waited: that is right
//! before the hand-over and harmless after it.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::WaitingRoom;
use crate::{Key, LeaseId};

/// How often in a row a key changes hands within this process. Then it is released for once, and whoever
/// asks first gets it: other processes see a free key only then.
const LONGEST_RUN: u32 = 16;

/// How long a holder waits for the one who takes its place, whose runtime may stand still.
const PATIENCE: Duration = Duration::from_millis(200);

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// The other has the key, and the lease is gone.
    Over,
    /// The lease is as it was.
    NotOver,
    /// It may be the one or the other.
    Unclear,
}

/// How a lease of this process came to its key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    /// How often in a row the key was handed over until then.
    pub(super) handed: u32,
    /// When another process was last seen to hold it.
    pub(super) elsewhere: Option<Instant>,
}

/// For how long a process that had the key counts as one that wants it.
const MEMORY: Duration = Duration::from_secs(10);

impl Run {
    /// Whether the key is to be released, and not handed over once more.
    fn is_over(&self) -> bool {
        self.handed >= LONGEST_RUN
    }

    /// Whether it is the turn of another process.
    pub(super) fn gives_way(&self, now: Instant) -> bool {
        let seen = |at: Instant| now.saturating_duration_since(at) < MEMORY;
        self.is_over() && self.elsewhere.is_some_and(seen)
    }

    /// The next, by a grant in the place of the lease that came like this.
    pub(super) fn next(before: Option<Self>, elsewhere: Option<Instant>) -> Self {
        Self {
            handed: before.map_or(0, |before| before.handed.saturating_add(1)),
            elsewhere: before.and_then(|before| before.elsewhere).max(elsewhere),
        }
    }
}

/// A lease that makes way. Dropping it tells its holder that nobody wants it.
#[derive(Debug)]
pub(crate) struct Baton {
    from: LeaseId,
    run: Run,
    outcome: Option<Outcome>,
}

/// One that was asked for. Dropping it tells the holder that nobody knows.
#[derive(Debug)]
pub(crate) struct Passing(Option<Outcome>);

type Outcome = oneshot::Sender<bool>;

impl Baton {
    pub(crate) fn from(&self) -> LeaseId {
        self.from
    }

    pub(crate) fn run(&self) -> Run {
        self.run
    }

    /// A request is sent for the place of the lease.
    pub(crate) fn sent(mut self) -> Passing {
        Passing(self.outcome.take())
    }
}

impl Drop for Baton {
    fn drop(&mut self) {
        tell(self.outcome.take(), false);
    }
}

impl Passing {
    pub(crate) fn over(self) {
        tell(self.0, true);
    }

    pub(crate) fn not_over(self) {
        tell(self.0, false);
    }
}

fn tell(outcome: Option<Outcome>, over: bool) {
    if let Some(outcome) = outcome {
        // The holder may have given up.
        let _ = outcome.send(over);
    }
}

impl WaitingRoom {
    /// Offers the lease to the first in the queue of its key, and waits for the outcome.
    pub(crate) async fn hand_over(&self, key: &Key, lease: LeaseId, run: Run) -> Handed {
        let Some(outcome) = self.offer(key, lease, run) else {
            return Handed::NotOver;
        };
        match timeout(PATIENCE, outcome).await {
            Ok(Ok(true)) => Handed::Over,
            Ok(Ok(false)) => Handed::NotOver,
            Ok(Err(_)) => Handed::Unclear,
            Err(_) if self.take_back(key, lease) => Handed::NotOver,
            Err(_) => Handed::Unclear,
        }
    }

    fn offer(&self, key: &Key, lease: LeaseId, run: Run) -> Option<oneshot::Receiver<bool>> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(key)?;
        // Who has asked already is answered sooner than by another request.
        if queue.asking || run.is_over() {
            return None;
        }
        let (outcome, told) = oneshot::channel();
        queue.baton = Some(Baton {
            from: lease,
            run,
            outcome: Some(outcome),
        });
        (queue.woken, queue.next) = (true, Instant::now());
        let first = queue.waiters.front().map(|first| first.work.clone());
        queue.call_first();
        drop(queues);
        first.iter().for_each(super::go_on);
        Some(told)
    }

    fn take_back(&self, key: &Key, lease: LeaseId) -> bool {
        let mut queues = self.queues.lock();
        let offered = queues.get_mut(key).map(|queue| &mut queue.baton);
        let own = offered.and_then(|baton| baton.take_if(|baton| baton.from == lease));
        own.is_some()
    }
}
