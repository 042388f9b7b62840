//! The releases of a client that closes, many in one call. The close waits until all are done, and does not report
//! their outcomes.

use std::collections::HashSet;

use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::{
    job::ReleaseJob,
    releaser::{PendingRelease, Releaser},
};
use crate::{
    messages::{BatchAnswer, BatchRequest},
    runtime, telemetry,
};

/// How many releases go in one batch.
const TOGETHER: usize = 500;
/// The greatest number of batches under way. With more than one, a batch that hangs does not delay all others.
const BATCHES: usize = 2;
/// If there are fewer leases than this, each is released in a request of its own.
const LEAST: usize = 8;

/// Releases these leases: in batches where possible, and each of the others in a request of its own.
///
/// This returns when the batches are done. The single releases go on in tasks, which the close waits for.
pub(crate) async fn release_all(releaser: Releaser, pending: Vec<PendingRelease>) {
    if releaser.coalescer.store.max_concurrent() == usize::MAX {
        // A store without a limit gains nothing from a batch.
        return pending.into_iter().for_each(release_singly);
    }
    let jobs = pending.into_iter().map(|pending| {
        let job = ReleaseJob::of(&pending.state);
        (pending, job)
    });
    // A batch has at most one lease of each key.
    let mut keys = HashSet::new();
    let (mut together, mut singly): (Vec<_>, Vec<_>) = jobs.partition(|(pending, job)| {
        // If a late acquire request may be granted the lease again, the lease has to be released more than once.
        !job.maybe_in_flight && keys.insert(pending.state.key().clone())
    });
    if together.len() < LEAST {
        singly.append(&mut together);
    }
    for (pending, _) in singly {
        release_singly(pending);
    }
    stream::iter(together)
        .chunks(TOGETHER)
        .for_each_concurrent(BATCHES, async |batch| {
            release_together(&releaser, batch).await;
        })
        .await;
}

async fn release_together(releaser: &Releaser, batch: Vec<(PendingRelease, ReleaseJob)>) {
    let store = &releaser.coalescer.store;
    let now = Instant::now();
    let requests = batch.iter().map(|(_, job)| job.first.at(now));
    let requests: Vec<_> = requests.map(BatchRequest::Release).collect();
    let asked = store.clone();
    let sent = async move { runtime::caught(asked.batch(&requests)).await };
    let answers = runtime::call("release", releaser.call_timeout, || store.name(), sent).await;
    let mut answers = answers.unwrap_or_default().into_iter();
    for (pending, job) in batch {
        match answers.next() {
            Some(Ok(BatchAnswer::Release(answer))) => {
                telemetry::released(job.fields(false), answer);
            }
            // The release may have been carried out although it failed. It is tried again like any other release.
            _ => release_singly(pending),
        }
    }
}

fn release_singly(pending: PendingRelease) {
    // Without a runtime the lease is not released, and the key is free when the ttl is over.
    let _ = runtime::spawn(pending.settle());
}
