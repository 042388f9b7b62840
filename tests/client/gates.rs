//! Points at which a store call can be stopped: before it reaches the server, and before its answer
//! comes back.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Clone, Debug, Default)]
pub struct Gates(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// How many may still pass until one is closed; `None` if none is.
    left: Mutex<Option<usize>>,
    reached: Notify,
    opened: Notify,
}

impl Gates {
    /// Closes the gate with this number, counted from now.
    pub fn close(&self, number: usize) {
        *self.0.left.lock() = Some(number);
    }

    /// Waits until a call stands at the closed gate.
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
