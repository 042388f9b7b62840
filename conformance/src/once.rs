//! Jobs that run once per tick: a tick that is done is not granted again.

mod kept;
mod one_runs;
mod written;

use std::sync::Arc;

pub use self::{
    kept::{
        a_clean_up_waits_for_what_is_done, a_list_shows_what_is_done,
        what_is_done_outlives_what_happens_to_the_key,
    },
    one_runs::{of_8_clients_one_does_a_tick, of_8_jobs_one_runs},
    written::{
        a_repeated_release_finds_the_tick_that_it_wrote,
        a_tick_that_was_not_done_is_granted_to_the_next,
        nothing_is_done_under_a_lease_that_is_lost,
    },
};
use super::{
    Clients, LONG, Outcome, Violation, ensure, fresh_key, granted, refused, release, request,
    state, violation,
};
use leasehold::{
    Error, Key, Store,
    jobs::{Done, Tick},
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, LeaseId, ReleaseAnswer,
        ReleaseRequest, Turn,
    },
};

/// A request for a tick.
fn asks(key: &Key, owner: &str, tick: Tick) -> AcquireRequest {
    request(key, owner, LONG).tick(tick)
}

/// Releases a lease, and marks its tick as done.
async fn complete(
    store: &Arc<dyn Store>,
    lease: &AcquireRequest,
) -> Result<ReleaseAnswer, Violation> {
    let release = ReleaseRequest::new(lease.key.clone(), lease.lease);
    match lease.tick {
        Some(tick) => Ok(store.release(&release.done(tick, LONG)).await?),
        None => violation("a lease for no tick"),
    }
}

/// Asks for a tick, and marks it as done, like a job that starts at once and succeeds.
async fn does(
    store: &Arc<dyn Store>,
    key: &Key,
    owner: &str,
    tick: Tick,
) -> Result<AcquireRequest, Violation> {
    let lease = asks(key, owner, tick);
    granted(store, &lease).await?;
    let answer = complete(store, &lease).await?;
    ensure!(
        answer == ReleaseAnswer::Released,
        "the release of a live lease under which {tick} was done was answered {answer:?}"
    );
    Ok(lease)
}

/// The answer to a request whose tick is done.
async fn told_done(store: &Arc<dyn Store>, request: &AcquireRequest) -> Result<Done, Violation> {
    match store.acquire(request).await? {
        AcquireAnswer::Done(done) => Ok(done),
        answer => violation(format!(
            "{request:?} was answered {answer:?}, and its tick is done"
        )),
    }
}

/// The newest done tick of a key.
async fn last(store: &Arc<dyn Store>, key: &Key) -> Result<Option<Done>, Violation> {
    Ok(state(store, key).await?.done)
}

/// One tick of each kind, with the ticks right before and after it.
fn ticks() -> Result<Vec<[Tick; 3]>, Violation> {
    let texts = [
        ["6", "7", "8"],
        ["2026-11-23", "2026-11-24", "2026-11-25"],
        ["1.2.65535", "1.3.0", "1.3.1"],
        [
            "2026-11-24T02:59:59.999Z",
            "2026-11-24T03:00:00Z",
            "2026-11-24T03:00:00.001Z",
        ],
        [
            "-9007199254740995",
            "-9007199254740994",
            "-9007199254740993",
        ],
        [
            "9223372036854775805",
            "9223372036854775806",
            "9223372036854775807",
        ],
    ];
    let mut ticks = Vec::new();
    for [before, tick, after] in texts {
        ticks.push([before.parse()?, tick.parse()?, after.parse()?]);
    }
    Ok(ticks)
}

/// A done tick is not granted again, nor is an older one, to any client, in whatever way it is asked for. A later tick
/// is granted, and so is a request without a tick.
pub async fn a_tick_that_is_done_is_not_granted_again(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    for [before, tick, later] in ticks()? {
        let key = fresh_key("a tick")?;
        let lease = does(first, &key, "who does it", tick).await?;
        let done = told_done(second, &asks(&key, "another", tick)).await?;
        ensure!(
            (done.tick, &*done.by, done.lease) == (tick, "who does it", lease.lease),
            "{tick} is done, and that is told as {done:?}"
        );
        let left = state(second, &key).await?;
        let waiter = LeaseId::random();
        for asked in [before, tick] {
            let asks = || asks(&key, "who does it", asked);
            for request in [
                asks(),
                asks().fresh(),
                asks().likely_held(),
                asks().shared(),
                asks().permits(1, 4)?,
                asks().reentrant(),
                asks().turn(Turn::Barging),
                asks().turn(Turn::in_turn(waiter, LONG)),
            ] {
                for store in [first, second] {
                    let told = told_done(store, &request).await?;
                    ensure!(told == done, "{done:?} is told as {told:?}");
                }
            }
            ensure!(
                told_done(first, &lease).await? == done,
                "the lease under which {tick} was done was granted again"
            );
            let other = request(&fresh_key("beside a tick")?, "another", LONG);
            let batch = [asks(), other].map(|it| BatchRequest::Acquire(Arc::new(it)));
            let answers = second.batch(&batch).await?;
            ensure!(
                matches!(
                    &answers[..],
                    [
                        Ok(BatchAnswer::Acquire(AcquireAnswer::Done(_))),
                        Ok(BatchAnswer::Acquire(AcquireAnswer::Granted(_))),
                    ]
                ),
                "a batch for {asked}, of which {tick} is done, was answered {answers:?}"
            );
        }
        let after = state(first, &key).await?;
        ensure!(
            (after.fence, &after.holders, &after.waiters, &after.done)
                == (left.fence, &left.holders, &left.waiters, &left.done),
            "requests for a tick that is done made {left:?} to {after:?}"
        );
        let plain = request(&key, "no job", LONG);
        granted(second, &plain).await?;
        release(first, &plain).await?;
        does(second, &key, "the next", later).await?;
        let told = told_done(first, &asks(&key, "another", tick)).await?;
        ensure!(told.tick == later, "{later} is done, and {told:?} is told");
    }
    Ok(())
}

/// A tick of another kind than the done one cannot be compared with it, and is refused with an error.
pub async fn ticks_of_different_kinds_are_not_compared(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let kinds = &ticks()?[..4];
    for [_, tick, _] in kinds {
        let key = fresh_key("a kind of ticks")?;
        does(first, &key, "who does it", *tick).await?;
        for others in kinds {
            for other in others.iter().filter(|it| it.kind() != tick.kind()) {
                let asks = || asks(&key, "another", *other);
                for request in [
                    asks(),
                    asks().fresh(),
                    asks().likely_held(),
                    asks().shared(),
                ] {
                    let answer = second.acquire(&request).await;
                    let is_told = matches!(
                        &answer,
                        Err(Error::OtherTickKind { key: of, tick: asked, done })
                            if (of, asked, done) == (&key, other, tick)
                    );
                    ensure!(
                        is_told,
                        "{tick} is done, and a request for {other} was answered {answer:?}"
                    );
                }
            }
        }
        let left = state(second, &key).await?;
        ensure!(
            left.is_free() && left.done.as_ref().is_some_and(|it| it.tick == *tick),
            "ticks of other kinds have left {left:?}"
        );
    }
    Ok(())
}

/// While a lease holds the key, the answer to a request for a done tick is that the tick is done, and the request takes
/// no place. A request for a later tick is refused.
pub async fn a_tick_that_is_done_is_not_waited_for(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("not waited for")?;
    let tick = Tick::counter;
    does(first, &key, "who does it", tick(7)).await?;
    for holder in [
        asks(&key, "a later job", tick(8)),
        request(&key, "no job", LONG),
        request(&key, "a reader", LONG).shared(),
    ] {
        granted(first, &holder).await?;
        let before = state(first, &key).await?;
        for number in [6, 7] {
            let asks = || asks(&key, "late", tick(number));
            let (waiter, stays) = (LeaseId::random(), LONG);
            for request in [
                asks(),
                asks().fresh(),
                asks().likely_held(),
                asks().shared(),
                asks().turn(Turn::in_turn(waiter, stays)),
                asks().turn(Turn::in_turn(waiter, stays)).likely_held(),
            ] {
                let done = told_done(second, &request).await?;
                ensure!(
                    done.tick == tick(7),
                    "7 is done, and that is told as {done:?}"
                );
            }
        }
        let left = state(first, &key).await?;
        ensure!(
            (left.fence, &left.holders, &left.waiters)
                == (before.fence, &before.holders, &before.waiters),
            "requests for a tick that is done made {before:?} to {left:?}"
        );
        for number in [8, 9] {
            let asks = || asks(&key, "in time", tick(number));
            for request in [asks(), asks().fresh(), asks().likely_held()] {
                refused(second, &request).await?;
            }
        }
        release(second, &holder).await?;
    }
    Ok(())
}
