//! Work that is done by whoever waits for it, and goes on in a task of its own as soon as it is left
//! alone.
//!
//! A task for each request would do, and costs more than all else that the client does: where the program
//! has little to do, two threads wake each other for every request (`docs/performance.md`). But work that
//! only its caller does stands still while nobody polls the caller's future. So the work is
//! [left](Work::leave) to a task when its future is dropped, and when somebody else depends on it: a close,
//! or one who waits for the same key.

use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::oneshot::{self, error::TryRecvError},
};

use crate::Error;

/// Work that somebody waits for.
pub(crate) struct Work {
    runtime: Handle,
    /// `None` before it begins, and after it has ended or was left.
    here: Mutex<Option<Here>>,
    left: AtomicBool,
}

struct Here {
    work: BoxFuture<'static, ()>,
    /// The one who does it.
    waker: Option<Waker>,
}

impl Work {
    /// Work of this runtime, which [begins](Work::wait) later.
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            runtime: Handle::try_current().map_err(|_| Error::NoRuntime)?,
            here: Mutex::default(),
            left: AtomicBool::new(false),
        }))
    }

    /// Does the work until its outcome is there; `None` if it ends without one. Dropping the future leaves the rest to a task.
    pub(crate) async fn wait<T>(
        self: Arc<Self>,
        work: impl Future<Output = ()> + Send + 'static,
        outcome: oneshot::Receiver<T>,
    ) -> Option<T> {
        *self.here.lock() = Some(Here {
            work: Box::pin(work),
            waker: None,
        });
        let here = Waiting(self);
        // Dropped before the rest is left, so that the work knows by then that nobody waits any more.
        let mut outcome = outcome;
        poll_fn(|cx| {
            match here.0.go_on(cx) {
                // The outcome comes of the steps that are taken here. Told of it besides, this future would
                // be polled once more, and a thread woken for nothing else.
                true => match outcome.try_recv() {
                    Ok(outcome) => Poll::Ready(Some(outcome)),
                    Err(TryRecvError::Empty) => Poll::Pending,
                    Err(TryRecvError::Closed) => Poll::Ready(None),
                },
                false => Pin::new(&mut outcome).poll(cx).map(Result::ok),
            }
        })
        .await
    }

    /// Takes the next steps of the work. Says whether there are more to take here.
    fn go_on(&self, cx: &mut Context<'_>) -> bool {
        let mut here = self.here.lock();
        if let Some(Here { work, waker }) = &mut *here {
            if !waker
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
            {
                *waker = Some(cx.waker().clone());
            }
            if work.as_mut().poll(cx).is_ready() {
                *here = None;
            }
        }
        drop(here);
        if self.left.load(Ordering::SeqCst) {
            self.leave();
        }
        self.here.lock().is_some()
    }

    /// Has a task go on with the work, if it is not at its end.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        // Whoever is at it now leaves it in a moment.
        let here = self.here.try_lock().and_then(|mut here| here.take());
        if let Some(Here { work, waker }) = here {
            self.runtime.spawn(work);
            // From now on it waits for the outcome.
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

struct Waiting(Arc<Work>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

/// All the work that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct Works(Mutex<HashMap<usize, Weak<Work>>>);

/// Takes the work out again.
pub(crate) struct Entry<'a>(&'a Works, usize);

impl Works {
    pub(crate) fn enter(&self, work: &Arc<Work>) -> Entry<'_> {
        let name = Arc::as_ptr(work) as usize;
        self.0.lock().insert(name, Arc::downgrade(work));
        Entry(self, name)
    }

    /// Leaves all of it to tasks.
    pub(crate) fn leave(&self) {
        let all: Vec<_> = self.0.lock().values().cloned().collect();
        for work in all.iter().filter_map(Weak::upgrade) {
            work.leave();
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}
