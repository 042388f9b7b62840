//! `OngoingRelease`: a release that is under way. If its runtime ends, the release returns to the renewal task, which
//! may have moved to another runtime by then.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
};

use futures::FutureExt;

use super::inbox::RenewalInbox;
use crate::{
    release::{PendingRelease, ReleaseReply, Releaser},
    runtime::in_flight::InFlight,
};

/// A release that is under way. If this is dropped before the release is done, the release returns to the renewal task.
pub(super) struct OngoingRelease {
    /// `None` after the release is done or given up.
    pending: Option<PendingRelease>,
    inbox: Arc<RenewalInbox>,
}

impl OngoingRelease {
    pub(super) fn new(pending: PendingRelease, inbox: Arc<RenewalInbox>) -> Self {
        Self {
            pending: Some(pending),
            inbox,
        }
    }

    /// Releases the lease, and sends the outcome to the caller if there is one.
    ///
    /// A release with a caller that panics also returns to the renewal task, because a second try may succeed: the
    /// timers of a runtime that has ended panic, and a subscriber of the application may panic only once. A release in
    /// the background that panics is given up.
    pub(super) async fn run(self, releaser: Releaser, reply: Option<ReleaseReply>) {
        let is_background = reply.is_none();
        let mut calls = InFlight::new();
        // This local is declared after the calls, so it is dropped before them. The drop of the calls may take long.
        let mut ongoing = self;
        if let Some(pending) = &ongoing.pending {
            let release = pending.release(&releaser, reply, &mut calls);
            let released = AssertUnwindSafe(release).catch_unwind().await;
            if let Err(panic) = released
                && !is_background
            {
                resume_unwind(panic);
            }
        }
        ongoing.pending = None;
        calls.finish().await;
    }
}

impl Drop for OngoingRelease {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.inbox.release(pending);
        }
    }
}
