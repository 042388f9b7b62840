//! The close of a handle: it loses all leases, releases them, and waits until nothing is under way.

use std::{pin::pin, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{
    effect::{Event, GiveBack},
    jobs::{Job, Reported},
    keys::Keys,
};
use crate::{
    model::Key,
    release::{PendingRelease, release_all},
    telemetry,
};

/// How often a close looks for releases that a runtime which ends has left over.
const LEFT_OVER: Duration = Duration::from_millis(100);

impl Keys {
    /// Ends all waits, releases all leases, and waits until all operations have ended.
    pub(crate) async fn close(&self) {
        self.lifecycle.begin_to_close();
        // A runtime may have ended, with the task that carries out releases.
        let _ = self.ensure_running();
        let (pending, rest) = self.end_all();
        let here = Handle::try_current();
        match &here {
            Ok(here) => self.release_on(here, pending),
            Err(_) => {
                let release = |pending| self.renewals.release(pending);
                pending.into_iter().for_each(release);
                self.renewals.drop_releases();
            }
        }
        // The subscriber of the application may panic in an event, so the releases have begun before.
        telemetry::for_each(rest, |(key, jobs)| {
            self.carry_out(&key, Some(((), jobs)));
        });
        let mut finished = pin!(self.lifecycle.finish());
        let Ok(here) = here else {
            return finished.await;
        };
        loop {
            self.release_on(&here, Vec::new());
            if timeout(LEFT_OVER, &mut finished).await.is_ok() {
                return;
            }
        }
    }

    /// Carries out these releases, and those that are left over, on this runtime.
    fn release_on(&self, here: &Handle, mut pending: Vec<PendingRelease>) {
        pending.extend(self.renewals.take_releases());
        if !pending.is_empty() {
            let (store, releaser) = (self.store.clone(), self.releaser.clone());
            drop(here.spawn(release_all(store, releaser, pending)));
        }
    }

    /// Ends the waits and the leases of all keys. Returns the releases, and what else the caller carries out after it has
    /// begun them.
    fn end_all(&self) -> (Vec<PendingRelease>, Vec<(Key, Vec<Job>)>) {
        let keys: Vec<Key> = self.map.lock().entries.keys().cloned().collect();
        let (mut pending, mut rest) = (Vec::new(), Vec::new());
        for key in keys {
            let changed = self.change(&key, false, |entry, now, out| {
                let leases = entry.leases.values().map(|it| it.lease().clone());
                let leases: Vec<_> = leases.collect();
                let guards = leases.iter().flat_map(|lease| lease.guards());
                guards.for_each(|guard| guard.pass_release_terms());
                entry.state.step(Event::Close, now, out);
                leases
            });
            let Some((leases, mut jobs)) = changed else {
                continue;
            };
            leases.iter().for_each(|lease| lease.lose_by_close());
            jobs.retain(|job| match job {
                Job::GiveBack(lease, GiveBack::Release) => {
                    let ended = self.end(lease, Instant::now());
                    pending.extend(ended.map(|(pending, _)| pending));
                    false
                }
                _ => true,
            });
            // The guards have lost their leases.
            jobs.push(Job::Report(Reported::Lost(
                leases.iter().flat_map(|it| it.guards()).collect(),
            )));
            rest.push((key, jobs));
        }
        (pending, rest)
    }
}
