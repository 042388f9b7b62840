//! Starts an acquire, and hands the lease to its caller.

use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use tokio::{sync::oneshot, time::Instant};
use tracing::Instrument;

use super::{
    attempt::Attempt,
    context::AcquireContext,
    late, local,
    operation::{AcquireOperation, AcquireReport, Reply, Retries},
    options::LeaseOptions,
};
use crate::{
    lease::Lease,
    model::{Error, Key, WaitPolicy},
    runtime::inline_task::InlineTask,
    telemetry::AcquireSpan,
};

/// Acquires one key. The minimum hold and the maximum hold apply as soon as the caller has the lease.
pub(super) async fn acquire(
    options: LeaseOptions,
    key: Result<Key, Error>,
    wait_policy: WaitPolicy,
) -> Result<Attempt, Error> {
    let (min_hold, max_hold) = (options.min_hold, options.max_hold);
    let end = acquire_without_holds(options, key, wait_policy, Retries::Some).await;
    if let Ok(Attempt::Acquired(lease)) = &end {
        let state = lease.state();
        state.set_min_hold(min_hold);
        state.set_max_hold(max_hold, state.granted_at());
    }
    end
}

/// Acquires one key, and leaves it to the caller to set the minimum hold and the maximum hold. If another key of a set
/// is not granted, the set releases this key and requests it again later, and a minimum hold would make it wait for its
/// own key. The time in which a set waits for its other keys does not count for the maximum hold.
pub(super) async fn acquire_without_holds(
    options: LeaseOptions,
    key: Result<Key, Error>,
    wait_policy: WaitPolicy,
    retries: Retries,
) -> Result<Attempt, Error> {
    let waits = wait_policy != WaitPolicy::None;
    let mut span = AcquireSpan::begin(key.as_ref().ok(), options.fields(), waits);
    let (context, keep_alive) = (options.context.clone(), options.keep_alive);
    if let Ok(key) = &key
        && context.registry.stays.is_used()
    {
        // Boxed, so that the future of an acquire that asks the store does not contain this one.
        let entering = Box::pin(local::acquire(&options, key, wait_policy, span.since()));
        if let Some(end) = entering.instrument(span.span()).await {
            return give_to_caller(&context, end, keep_alive, span);
        }
    }
    let mut asked = (options, key);
    loop {
        let again = (keep_alive && waits).then(|| asked.clone());
        let mut end = ask(&context, asked, wait_policy, retries, &mut span).await;
        if let Ok(Attempt::Acquired(lease)) = &end
            && keep_alive
            && late::is_late(lease, Instant::now())
        {
            // Boxed, because few grants are late.
            let renewing = Box::pin(late::renew(lease)).instrument(span.span());
            if let Err(error) = renewing.await {
                let again =
                    again.filter(|_| late::is_to_be_asked_again(&error, wait_policy, span.since()));
                end = Err(error);
                if let Some(again) = again {
                    asked = again;
                    continue;
                }
            }
        }
        return give_to_caller(&context, end, keep_alive, span);
    }
}

/// Asks the store for a key, and waits for the outcome.
async fn ask(
    context: &AcquireContext,
    (options, key): (LeaseOptions, Result<Key, Error>),
    wait_policy: WaitPolicy,
    retries: Retries,
    span: &mut AcquireSpan,
) -> Result<Attempt, Error> {
    let (reply, outcome) = oneshot::channel();
    let waits = wait_policy != WaitPolicy::None;
    let waited_for = key.as_ref().ok().filter(|_| waits).cloned();
    let (work, asking) = begin(options, key, wait_policy, retries, span.since(), reply)?;
    let mut caller = waited_for.map(|key| Caller::new(context, key, &work));
    let waiting = context
        .registry
        .lifecycle
        .wait_for(work, span.since(), asking, outcome);
    let reported = waiting.instrument(span.span()).await;
    if let Some(caller) = &mut caller {
        caller.has_outcome = true;
    }
    let AcquireReport { outcome, ahead } = reported?;
    span.set_ahead(ahead);
    outcome
}

/// The caller of an acquire that may wait. If its future is dropped, the waiter leaves the others their turn at once,
/// also if nothing drives the runtime of the operation any more.
struct Caller<'a> {
    context: &'a AcquireContext,
    key: Key,
    work: Weak<InlineTask>,
    /// Whether the operation has left the queue, and has reported its outcome.
    has_outcome: bool,
}

impl<'a> Caller<'a> {
    fn new(context: &'a AcquireContext, key: Key, work: &Arc<InlineTask>) -> Self {
        Self {
            context,
            key,
            work: Arc::downgrade(work),
            has_outcome: false,
        }
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if !self.has_outcome {
            self.context.registry.queues.abandon(&self.key, &self.work);
        }
    }
}

/// Reports the outcome, and gives the lease to the caller.
fn give_to_caller(
    context: &AcquireContext,
    mut end: Result<Attempt, Error>,
    keep_alive: bool,
    span: AcquireSpan,
) -> Result<Attempt, Error> {
    let now = Instant::now();
    if let Ok(Attempt::Acquired(lease)) = &end
        && let Err(error) = check_live_and_keep(context, lease, keep_alive, now)
    {
        end = Err(error);
    }
    match &end {
        Ok(Attempt::Acquired(lease)) => span.granted(lease.state().fields(), lease.owner(), now),
        Ok(Attempt::Held(held)) => span.refused(held, now),
        Err(error) => span.failed(error, now),
    }
    end
}

fn begin(
    options: LeaseOptions,
    key: Result<Key, Error>,
    wait_policy: WaitPolicy,
    retries: Retries,
    since: Instant,
    reply: Reply,
) -> Result<(Arc<InlineTask>, BoxFuture<'static, ()>), Error> {
    // The token is taken before the check for a close (in `AcquireOperation::new`). So a close either waits for this
    // acquire, or the check sees the close.
    let at_work = options.context.registry.lifecycle.register_operation();
    let work = InlineTask::new()?;
    let acquisition = AcquireOperation::new(options, key?, retries, since, &work)?;
    // Boxed here, because every future that takes this one by value would grow by its size.
    let asking = Box::pin(acquisition.run(wait_policy, reply, at_work));
    Ok((work, asking))
}

/// Checks that the lease is still live when the caller gets it, and starts its renewals. The lease has expired if the
/// caller's future was not polled for too long.
fn check_live_and_keep(
    context: &AcquireContext,
    lease: &Lease,
    keep_alive: bool,
    now: Instant,
) -> Result<(), Error> {
    if lease.is_live_at(now) && !(lease.is_local() && context.registry.lifecycle.is_closing()) {
        // Renewals begin only now. Otherwise the key would stay held for ever if the caller's future is never polled
        // again.
        if keep_alive { lease.keep() } else { Ok(()) }
    } else if context.registry.lifecycle.is_closing() {
        Err(Error::Closed)
    } else {
        Err(Error::NotTaken {
            key: lease.key().clone(),
            ttl: lease.ttl(),
        })
    }
}
