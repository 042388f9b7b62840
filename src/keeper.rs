//! What goes on behind the caller's back: the tasks of store calls, renewals, and releases that
//! nobody waits for. Only this file spawns.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel},
        oneshot,
    },
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::{
    Cause, Error, Store,
    calls::caught,
    hold::{End, Hold, Watch},
    record::LeaseId,
    release::{Released, Releases, Unused},
    schedule::{self, Schedule},
    wait::WaitingRoom,
    wakeups,
};

/// Runs a store call in a task of its own and waits for it this long.
///
/// Dropping the returned future, or running out of time, leaves the call running: the MongoDB
/// driver documents that its futures are not cancel safe.
pub(crate) async fn call<T: Send + 'static>(
    operation: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let task = spawn(work)?;
    match timeout(limit, task).await {
        Ok(Ok(outcome)) => outcome,
        // The task was killed by a panic in the store or by the end of its runtime.
        Ok(Err(ended)) => Err(Error::Interrupted {
            store: "the store",
            source: ended.into(),
        }),
        Err(_) => Err(Error::TimedOut { operation, limit }),
    }
}

pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
    Ok(runtime.spawn(work))
}

enum Message {
    /// Release this in the background.
    Release(Unused, TaskTrackerToken),
    /// Keep this lease alive until it is lost or given up.
    Keep(Weak<Hold>),
    /// Cancel the token when this lease is lost or given up.
    Tell(Watch, DropGuard),
    /// This is what became of the renewals that were sent at this instant.
    Renewed(Instant, Vec<(LeaseId, Renewal)>),
}

#[derive(Clone, Copy, Debug)]
enum Renewal {
    Done,
    Failed,
    Lost,
}

/// The inbox of the task that renews, and releases in the background; and who is still at work.
///
/// Sending never blocks, spawns or panics, so that guards can do it as they drop, with or without
/// a runtime. The task starts with the first acquire and ends when the last [`Keeper`] is gone. A
/// runtime that shuts down takes it along: what was left to release then ends with its ttl, and
/// what was kept alive is lost at its deadline.
#[derive(Debug)]
pub(crate) struct Keeper {
    releases: Releases,
    room: Arc<WaitingRoom>,
    inbox: Mutex<Option<UnboundedSender<Message>>>,
    /// The leases of this process, for [`Keeper::close`].
    held: Mutex<HashMap<LeaseId, Weak<Hold>>>,
    closing: CancellationToken,
    at_work: TaskTracker,
}

impl Keeper {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        call_timeout: Duration,
        room: Arc<WaitingRoom>,
    ) -> Self {
        Self {
            releases: Releases::new(store, call_timeout, room.clone()),
            room,
            inbox: Mutex::new(None),
            held: Mutex::default(),
            closing: CancellationToken::new(),
            at_work: TaskTracker::new(),
        }
    }

    /// Starts the task unless it runs. It does not outlive its runtime, so each acquire asks.
    pub(crate) fn ensure_running(&self, store: &Arc<dyn Store>) -> Result<(), Error> {
        let mut inbox = self.inbox.lock();
        if inbox.as_ref().is_none_or(UnboundedSender::is_closed) {
            let (sender, receiver) = unbounded_channel();
            let keeping = Keeping {
                store: store.clone(),
                releases: self.releases.clone(),
                schedule: Schedule::new(),
                back: sender.downgrade(),
            };
            spawn(keeping.run(receiver))?;
            *inbox = Some(sender);
        }
        Ok(())
    }

    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    pub(crate) fn releases(&self) -> &Releases {
        &self.releases
    }

    /// Counts somebody among those that [`Keeper::close`] waits for.
    pub(crate) fn at_work(&self) -> TaskTrackerToken {
        self.at_work.token()
    }

    /// Takes in a lease that was granted.
    pub(crate) fn granted(&self, hold: &Arc<Hold>, keep_alive: bool) {
        self.held.lock().insert(hold.id, Arc::downgrade(hold));
        if keep_alive {
            self.send(Message::Keep(Arc::downgrade(hold)));
        }
    }

    /// A guard is dropped: its lease is released in the background.
    pub(crate) fn abandon(&self, hold: &Hold) {
        if self.end(hold, End::Released) {
            self.send(Message::Release(hold.unused(), self.at_work()));
        }
    }

    /// A lease is given up. Says whether this was the first to say so.
    pub(crate) fn end(&self, hold: &Hold, end: End) -> bool {
        self.held.lock().remove(&hold.id);
        hold.end(end)
    }

    /// Releases a lease and waits for the outcome. Dropping this does not stop the release.
    pub(crate) async fn release(&self, hold: &Hold) -> Result<Released, Error> {
        let (report, outcome) = oneshot::channel();
        let (releases, unused, at_work) = (self.releases.clone(), hold.unused(), self.at_work());
        spawn(async move {
            releases.run(unused, Some(report)).await;
            drop(at_work);
        })?;
        outcome.await.unwrap_or_else(|_| Err(runtime_ended()))
    }

    /// Cancels the token when the lease is lost or given up, and at once if there is nobody to see
    /// that.
    pub(crate) fn tell(&self, hold: &Hold, token: DropGuard) {
        self.send(Message::Tell(hold.watch(), token));
    }

    /// Releases every lease, lets nothing be acquired any more, and waits for what is under way.
    pub(crate) async fn close(&self, store: &Arc<dyn Store>) {
        self.closing.cancel();
        // The one that ran may have ended with its runtime.
        let _ = self.ensure_running(store);
        let held: Vec<_> = self.held.lock().drain().collect();
        for hold in held.iter().filter_map(|(_, hold)| hold.upgrade()) {
            if hold.close() {
                self.send(Message::Release(hold.unused(), self.at_work()));
            }
        }
        self.at_work.close();
        self.at_work.wait().await;
    }

    /// Has the store listened to for keys that become free, unless that is done or of no use.
    pub(crate) fn listen(&self, store: &Arc<dyn Store>) {
        if self.room.wants_listener() {
            let (room, closing) = (self.room.clone(), self.closing.clone());
            if spawn(wakeups::listen(store.clone(), room, closing)).is_err() {
                self.room.stops_listening();
            }
        }
    }

    fn send(&self, message: Message) {
        if let Some(inbox) = self.inbox.lock().as_ref() {
            // With its runtime gone nobody can release or renew; the ttl will end it.
            let _ = inbox.send(message);
        }
    }
}

pub(crate) fn runtime_ended() -> Error {
    Error::Interrupted {
        store: "the store",
        source: Cause::text("its runtime ended"),
    }
}

/// The task itself. It never waits for a store, so that no lease is held up by another's trouble.
struct Keeping {
    store: Arc<dyn Store>,
    releases: Releases,
    schedule: Schedule<Weak<Hold>>,
    back: WeakUnboundedSender<Message>,
}

impl Keeping {
    async fn run(mut self, mut inbox: UnboundedReceiver<Message>) {
        loop {
            let message = match self.schedule.next() {
                Some(due) => tokio::select! {
                    message = inbox.recv() => message,
                    () = sleep_until(due) => {
                        self.renew_due(Instant::now());
                        continue;
                    }
                },
                None => inbox.recv().await,
            };
            match message {
                Some(message) => self.take_in(message, Instant::now()),
                None => return,
            }
        }
    }

    fn take_in(&mut self, message: Message, now: Instant) {
        match message {
            Message::Release(unused, at_work) => {
                let releases = self.releases.clone();
                self.spawn(async move {
                    releases.run(unused, None).await;
                    drop(at_work);
                });
            }
            Message::Keep(hold) => {
                if let Some(kept) = hold.upgrade() {
                    self.schedule.insert(kept.id, hold, kept.ttl, now);
                }
            }
            Message::Tell(watch, token) => self.spawn(async move {
                watch.lost().await;
                drop(token);
            }),
            Message::Renewed(sent, renewals) => {
                for (id, renewal) in renewals {
                    match renewal {
                        Renewal::Done => self.schedule.renewed(id, sent),
                        Renewal::Failed => self.schedule.failed(id, now, fastrand::f64()),
                        Renewal::Lost => self.schedule.remove(id),
                    }
                }
            }
        }
    }

    fn renew_due(&mut self, now: Instant) {
        let due = self.schedule.take_due(now);
        for hold in due.overdue.iter().filter_map(|(_, hold)| hold.upgrade()) {
            hold.failed(Error::TimedOut {
                operation: "renew",
                limit: schedule::patience(hold.ttl),
            });
        }
        for batch in due.batches {
            let mut holds = Vec::with_capacity(batch.len());
            for (id, hold) in batch {
                match hold.upgrade().filter(|hold| hold.wants_renewal()) {
                    Some(hold) => holds.push(hold),
                    None => self.schedule.remove(id),
                }
            }
            if holds.is_empty() {
                continue;
            }
            let (store, back) = (self.store.clone(), self.back.clone());
            self.spawn(async move {
                let sent = Instant::now();
                let renewals = renew(&*store, &holds, sent).await;
                // Without a keeper nobody keeps them alive any more.
                if let Some(back) = back.upgrade() {
                    let _ = back.send(Message::Renewed(sent, renewals));
                }
            });
        }
    }

    /// This task runs, so there is a runtime, unless it is just ending.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _ = spawn(work);
    }
}

/// Renews leases with one call, at this instant, and tells each what came of it.
async fn renew(store: &dyn Store, holds: &[Arc<Hold>], sent: Instant) -> Vec<(LeaseId, Renewal)> {
    let requests: Vec<_> = holds.iter().map(|hold| hold.renewal()).collect();
    let mut answers = caught(store.renew(&requests)).await.map(Vec::into_iter);
    let outcome = |hold: &Arc<Hold>| {
        let answer = match &mut answers {
            Ok(answers) => answers.next().unwrap_or_else(|| Err(left_out())),
            Err(error) => Err(error.clone()),
        };
        let renewal = match hold.take_in(sent, answer) {
            Ok(()) => Renewal::Done,
            Err(Error::Lost { .. }) => Renewal::Lost,
            Err(_) => Renewal::Failed,
        };
        (hold.id, renewal)
    };
    holds.iter().map(outcome).collect()
}

/// Renews one lease for somebody who waits for it.
pub(crate) async fn renew_now(
    store: Arc<dyn Store>,
    hold: Arc<Hold>,
    limit: Duration,
) -> Result<(), Error> {
    let renewed = hold.clone();
    let outcome = call("renew", limit, async move {
        let sent = Instant::now();
        let mut answers = caught(store.renew(&[renewed.renewal()])).await;
        let answer = match &mut answers {
            Ok(answers) => answers.pop().unwrap_or_else(|| Err(left_out())),
            Err(error) => Err(error.clone()),
        };
        renewed.take_in(sent, answer)
    })
    .await;
    if let Err(error @ Error::TimedOut { .. }) = &outcome {
        hold.failed(error.clone());
    }
    outcome
}

fn left_out() -> Error {
    Error::Store {
        store: "the store",
        source: Cause::text("it left a renewal without an answer"),
    }
}
