//! `SharedPlans`: the plans of a faulty store, which its handles change and its calls follow.
//!
//! The plans are in a `watch` channel. It tells the calls that hang of each change, and those that wait for a call to
//! hang.

use chrono::{DateTime, Utc};
use tokio::sync::watch;

use super::plan::{Fault, Group, Plans};
use crate::model::Key;

#[derive(Debug, Default)]
pub(super) struct SharedPlans(watch::Sender<Plans>);

impl SharedPlans {
    pub(super) fn change(&self, change: impl FnOnce(&mut Plans)) {
        self.0.send_modify(change);
    }

    /// Whether no call meets a fault.
    pub(super) fn is_normal(&self) -> bool {
        self.0.borrow().is_normal()
    }

    pub(super) async fn until(&self, reached: impl FnMut(&Plans) -> bool) {
        // This does not fail: the sender is here.
        let _ = self.0.subscribe().wait_for(reached).await;
    }

    /// Waits while calls of a group hang, and gives what this one meets.
    pub(super) async fn next(&self, group: Group) -> Fault {
        if let Some(fault) = self.take(group) {
            return fault;
        }
        let _hanging = HangingCall::new(self, group);
        let mut changes = self.0.subscribe();
        loop {
            if let Some(fault) = self.take(group) {
                return fault;
            }
            // This does not fail: the sender is here.
            let _ = changes.changed().await;
        }
    }

    fn take(&self, group: Group) -> Option<Fault> {
        self.count(|plans| plans.take(group))
    }

    /// Counts an acquire that would be carried out. Returns since when another owner has its key, if it is refused.
    pub(super) fn take_refusal(&self) -> Option<DateTime<Utc>> {
        self.count(Plans::take_refusal)
    }

    /// Counts a call. No other call waits for that.
    fn count<T>(&self, count: impl FnOnce(&mut Plans) -> Option<T>) -> Option<T> {
        let mut counted = None;
        self.0.send_if_modified(|plans| {
            counted = count(plans);
            false
        });
        counted
    }

    /// The next key to evict.
    pub(super) fn next_lost(&self) -> Option<Key> {
        self.0.borrow().lost.front().cloned()
    }

    /// Records that the next key to evict was evicted.
    pub(super) fn evicted(&self) {
        self.change(|plans| drop(plans.lost.pop_front()));
    }
}

/// A call that hangs, until it is dropped.
struct HangingCall<'a> {
    plans: &'a SharedPlans,
    group: Group,
}

impl<'a> HangingCall<'a> {
    fn new(plans: &'a SharedPlans, group: Group) -> Self {
        plans.change(|plans| *plans.hanging(group) += 1);
        Self { plans, group }
    }
}

impl Drop for HangingCall<'_> {
    fn drop(&mut self) {
        self.plans.change(|plans| *plans.hanging(self.group) -= 1);
    }
}
