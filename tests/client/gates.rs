//! Gates at which a call of the store can be stopped: before it reaches the server, and before its
//! answer comes back.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Clone, Debug, Default)]
pub struct Gates(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// How many calls may still pass before the gate is closed; `None` if no gate is to be closed.
    left: Mutex<Option<usize>>,
    reached: Notify,
    opened: Notify,
}

impl Gates {
    /// Closes the gate with this number. Counting starts at 0, from now on.
    pub fn close(&self, number: usize) {
        *self.0.left.lock() = Some(number);
    }

    /// Waits until a call has stopped at the closed gate.
    pub async fn reached(&self) {
        self.0.reached.notified().await;
    }

    pub fn open(&self) {
        *self.0.left.lock() = None;
        self.0.opened.notify_waiters();
    }

    pub async fn pass(&self) {
        let opened = self.0.opened.notified();
        let closed = {
            let mut left = self.0.left.lock();
            match &mut *left {
                Some(0) => true,
                Some(left) => {
                    *left -= 1;
                    false
                }
                None => false,
            }
        };
        if closed {
            self.0.reached.notify_one();
            opened.await;
        }
    }
}
