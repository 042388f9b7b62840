//! The close of a handle: it loses all leases, releases them, and waits until nothing is under way. And its end with its
//! runtime.

use tokio::{runtime::Handle, time::Instant};

use super::{
    effect::{Effect, Effects, Event, Report},
    keys::Keys,
};
use crate::{
    model::Key,
    release::{PendingRelease, release_all},
    telemetry,
};

impl Keys {
    /// Ends all waits, releases all leases, and waits until all operations have ended.
    pub(crate) async fn close(&self) {
        self.lifecycle.closing.cancel();
        let (pending, rest) = self.end_all();
        if !pending.is_empty() {
            let releases = release_all(self.releaser.clone(), pending);
            match Handle::try_current() {
                // Its caller waits for them.
                Ok(here) => drop(here.spawn(releases)),
                Err(_) => self.lifecycle.spawn(releases),
            }
        }
        // The subscriber of the application may panic in an event, so the releases have begun before.
        self.carry_out_all(rest);
        self.lifecycle.finish().await;
    }

    /// Ends all waits and all leases, because the runtime has ended. Nothing can be released.
    pub(super) fn end_with_runtime(&self) {
        let (pending, rest) = self.end_all();
        drop(pending);
        self.carry_out_all(rest);
    }

    fn carry_out_all(&self, effects: Vec<(Key, Effects)>) {
        telemetry::for_each(effects, |(key, effects)| {
            self.carry_out(&key, Some(((), effects)));
        });
    }

    /// Ends the waits and the leases of all keys. Returns the releases, and what else the caller carries out after it has
    /// begun them.
    fn end_all(&self) -> (Vec<PendingRelease>, Vec<(Key, Effects)>) {
        let keys: Vec<Key> = self.map.lock().states.keys().cloned().collect();
        let (mut pending, mut rest) = (Vec::new(), Vec::new());
        for key in keys {
            let changed = self.change(&key, false, |state, now, out| {
                let leases: Vec<_> = state.leases().cloned().collect();
                state.step(Event::Close, now, out);
                leases
            });
            let Some((leases, mut effects)) = changed else {
                continue;
            };
            let why = self.lifecycle.loss();
            leases.iter().for_each(|lease| lease.lose_by_close(&why));
            effects.retain(|effect| match effect {
                Effect::GiveBack(lease) => {
                    let ended = self.end(lease, Instant::now());
                    pending.extend(ended.map(|(pending, _)| pending));
                    false
                }
                _ => true,
            });
            // The guards have lost their leases.
            let guards = leases.iter().flat_map(|it| it.guards()).collect();
            effects.push(Effect::Report(Report::Lost(guards)));
            rest.push((key, effects));
        }
        (pending, rest)
    }
}
