//! The queue of the processes that wait for a key.
//!
//! Here a process is a [`WaiterId`]. On a key that somebody has, places bind until they are over, and on a free one for
//! a moment only. So an attempt after which the server's clock says that it came too late for that is made again.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures::future::join_all;
use tokio::time::{Instant, sleep};

use super::{
    Clients, LONG, LOOK, Lived, Outcome, PATIENCE, SHORT, Violation, after, ensure, fresh_key,
    granted, refused, renew, request, state, violation, with_time_enough,
};
use leasehold::{
    Filter, Held, Key, LockState, Mode, Store,
    limits::MAX_PLACES,
    rules::turn::{LONGEST, WORTH_A_WRITE},
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, ConvertAnswer, ConvertRequest,
        Grant, ListRequest, ReleaseRequest, RenewAnswer, Turn, WaiterId,
    },
};

/// For how long a place counts that a property needs.
const STAYS: Duration = Duration::from_secs(30);

/// The request of a process that waits.
fn waiting(key: &Key, waiter: WaiterId) -> AcquireRequest {
    let stays = STAYS;
    request(key, &format!("process {waiter}"), LONG).turn(Turn::InTurn { waiter, stays })
}

fn processes<const N: usize>() -> [WaiterId; N] {
    [(); N].map(|()| WaiterId::random())
}

fn waiters(state: &LockState) -> Vec<WaiterId> {
    state.waiters.iter().map(|place| place.waiter).collect()
}

async fn release(store: &Arc<dyn Store>, lease: &AcquireRequest) -> Outcome {
    let request = ReleaseRequest::new(lease.key.clone(), lease.lease);
    store.release(&request).await?;
    Ok(())
}

/// Until when the places that are seen here all count.
fn binding(seen: &LockState) -> DateTime<Utc> {
    let ends = seen.waiters.iter().map(|place| place.until);
    ends.min().unwrap_or(seen.now)
}

/// Until when they all count on a key that is released after this was seen.
fn binding_if_free(seen: &LockState) -> DateTime<Utc> {
    binding(seen).min(after(seen.now, LONGEST))
}

/// The refusal of a request that stands behind others until this time; `None` if it was made later.
async fn behind(
    store: &Arc<dyn Store>,
    request: &AcquireRequest,
    until: DateTime<Utc>,
) -> Result<Option<Held>, Violation> {
    match store.acquire(request).await? {
        AcquireAnswer::Held(held) => Ok(Some(held)),
        AcquireAnswer::Granted(grant) if grant.acquired_at < until => violation(format!(
            "{} was granted the key at {}, and others come first until {until}",
            request.owner, grant.acquired_at
        )),
        AcquireAnswer::Granted(_) => Ok(None),
    }
}

/// The grant of a request that comes first until this time; `None` if it was refused later.
async fn comes_first(
    store: &Arc<dyn Store>,
    request: &AcquireRequest,
    until: DateTime<Utc>,
) -> Result<Option<Grant>, Violation> {
    match store.acquire(request).await? {
        AcquireAnswer::Granted(grant) => Ok(Some(grant)),
        AcquireAnswer::Held(held) => {
            let now = state(store, &request.key).await?.now;
            ensure!(
                now >= until,
                "at {now} {} was answered {held:?}, and it comes first until {until}",
                request.owner
            );
            Ok(None)
        }
    }
}

/// Makes an attempt again until it comes in time.
async fn in_time(attempt: impl AsyncFn() -> Result<Lived, Violation>) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if attempt().await? == Lived::LongEnough {
            return Ok(());
        }
        sleep(SHORT).await;
    }
    violation("no attempt came in time")
}

macro_rules! or_too_late {
    ($answer:expr) => {
        match $answer {
            Some(answer) => answer,
            None => return Ok(Lived::TooShort),
        }
    };
}

/// Each process that waits takes a place, and the places are granted the key in their order. A place goes with its
/// grant.
pub async fn processes_are_granted_a_key_in_the_order_in_which_they_came(
    clients: &Clients,
) -> Outcome {
    in_time(async || in_order(clients).await).await
}

async fn in_order(clients: &Clients) -> Result<Lived, Violation> {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("in order")?;
    let mut holder = request(&key, "the holder", LONG);
    granted(first, &holder).await?;
    let order: [_; 3] = processes();
    for (number, waiter) in order.into_iter().enumerate() {
        let waiting = waiting(&key, waiter);
        let held = refused(&clients.of_task(number), &waiting).await?;
        let seen = state(first, &key).await?;
        let is_told = held.ahead() == number && held.holders().len() == 1;
        ensure!(
            is_told || seen.waiters.len() <= number,
            "the process {number} was answered {held:?}"
        );
    }
    let mut left = &order[..];
    while let [next, later @ ..] = left {
        let seen = state(second, &key).await?;
        if seen.now >= binding(&seen) || waiters(&seen).len() < left.len() {
            return Ok(Lived::TooShort);
        }
        ensure!(
            waiters(&seen) == left,
            "{left:?} wait, and {:?} are shown",
            seen.waiters
        );
        release(first, &holder).await?;
        let until = binding_if_free(&seen);
        for (ahead, waiter) in (1..).zip(later) {
            let held = or_too_late!(behind(second, &waiting(&key, *waiter), until).await?);
            let is_told = held.ahead() == ahead && held.holders().is_empty();
            ensure!(
                is_told && held.binds_for() > Duration::ZERO && held.binds_for() <= LONGEST,
                "who is behind {ahead} on a free key was answered {held:?}"
            );
        }
        or_too_late!(behind(first, &request(&key, "a try", LONG), until).await?);
        holder = waiting(&key, *next);
        or_too_late!(comes_first(second, &holder, binding(&seen)).await?);
        let seen = state(first, &key).await?;
        ensure!(
            !waiters(&seen).contains(next),
            "a process waits for the key that it has: {seen:?}"
        );
        left = later;
    }
    Ok(Lived::LongEnough)
}

/// A place tells who waits, for what, since when and how long, to whoever looks.
pub async fn a_place_tells_who_waits(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("who waits")?;
        granted(first, &request(&key, "the holder", LONG)).await?;
        let before = state(first, &key).await?.now;
        let order: [_; 3] = processes();
        let [one, two, three] = order.map(|waiter| waiting(&key, waiter));
        let requests = [one, two.shared(), three.permits(3, 7)];
        for request in &requests {
            refused(second, request).await?;
        }
        let seen = state(first, &key).await?;
        if seen.waiters.len() < order.len() {
            return Ok(Lived::TooShort);
        }
        let modes = [(Mode::Exclusive, 1), (Mode::Shared, 1), (Mode::Permits, 3)];
        for ((place, request), (mode, permits)) in seen.waiters.iter().zip(&requests).zip(modes) {
            let is_right = Some(place.waiter) == request.turn.waiter()
                && place.owner == request.owner
                && (place.mode, place.permits) == (mode, permits)
                && place.since >= before
                && place.since <= seen.now
                && place.until == after(place.since, STAYS);
            ensure!(is_right, "{request:?} has the place {place:?}");
        }
        let filter = Filter::new().prefix(key.as_str());
        // A search engine lists what was written a moment ago.
        let start = Instant::now();
        loop {
            let page = ListRequest::new(filter.clone(), None, 10);
            let listed = second.list(&page).await?.locks;
            match &listed[..] {
                [lock] if lock.waiters == seen.waiters => return Ok(Lived::LongEnough),
                _ if state(first, &key).await?.waiters != seen.waiters => {
                    return Ok(Lived::TooShort);
                }
                _ if start.elapsed() > PATIENCE => {
                    return violation(format!("{:?} are listed as {listed:?}", seen.waiters));
                }
                _ => sleep(LOOK).await,
            }
        }
    })
    .await
}

/// A process keeps its place by asking, and takes no second one.
pub async fn a_place_lasts_while_its_process_asks(clients: &Clients) -> Outcome {
    with_time_enough(async |stays| {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("goes on asking")?;
        granted(first, &request(&key, "the holder", LONG)).await?;
        let [waiter, other] = processes();
        let stays = stays.min(STAYS);
        let asks = waiting(&key, waiter).turn(Turn::InTurn { waiter, stays });
        refused(second, &asks).await?;
        let taken = state(first, &key).await?.waiters;
        refused(first, &waiting(&key, other)).await?;
        let [taken] = &taken[..] else {
            return Ok(Lived::TooShort);
        };
        loop {
            refused(second, &asks).await?;
            let seen = state(first, &key).await?;
            if seen.now >= taken.until {
                return Ok(Lived::TooShort);
            }
            // A place that has more than two thirds of its time left is not written again.
            match &seen.waiters[..] {
                [mine, _] if mine == taken => sleep(LOOK).await,
                [mine, _] if (mine.waiter, mine.since) == (waiter, taken.since) => {
                    ensure!(mine.until > taken.until, "{taken:?} became {mine:?}");
                    return Ok(Lived::LongEnough);
                }
                other => return violation(format!("{taken:?} became one of {other:?}")),
            }
        }
    })
    .await
}

/// Readers stand beside each other, and not in front of a writer that waits.
pub async fn a_reader_queues_behind_a_writer(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("a writer waits")?;
        let reader = request(&key, "a reader", LONG).shared();
        granted(first, &reader).await?;
        let [writer, one, two] = processes();
        let writes = waiting(&key, writer);
        let [one, two] = [one, two].map(|waiter| waiting(&key, waiter).shared());
        refused(first, &writes).await?;
        let until = binding(&state(first, &key).await?);
        for late in [&one, &two, &request(&key, "a try", LONG).shared()] {
            let held = or_too_late!(behind(second, late, until).await?);
            ensure!(
                held.holders().len() == 1 && held.binds_for() == Duration::ZERO,
                "a reader behind a writer was answered {held:?}"
            );
        }
        release(first, &reader).await?;
        or_too_late!(comes_first(second, &writes, until).await?);
        release(second, &writes).await?;
        let seen = state(first, &key).await?;
        // Whichever reader asks first: the other stands beside it.
        granted(second, &two).await?;
        granted(first, &two).await?;
        let left = state(second, &key).await?;
        if seen.waiters.len() == 2 && left.now < binding(&seen) {
            ensure!(
                waiters(&left) == [seen.waiters[0].waiter],
                "a reader that passed another left {:?} of {:?}",
                left.waiters,
                seen.waiters
            );
        }
        granted(second, &one).await?;
        Ok(Lived::LongEnough)
    })
    .await
}

/// The tasks of a process that wait to read are let in together, in the place of the first of them.
pub async fn readers_of_a_process_share_its_place(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("readers of a process")?;
        let holder = request(&key, "the holder", LONG);
        granted(first, &holder).await?;
        let [readers, writer] = processes();
        let reads = || waiting(&key, readers).shared();
        let writes = waiting(&key, writer);
        refused(first, &reads()).await?;
        refused(first, &writes).await?;
        let until = binding_if_free(&state(first, &key).await?);
        release(second, &holder).await?;
        let together = [reads().keeping_place(), reads().keeping_place(), reads()];
        for (client, read) in [first, second, first].into_iter().zip(&together) {
            or_too_late!(comes_first(client, read, until).await?);
        }
        // The last of them has ended the place.
        let until = binding(&state(first, &key).await?);
        or_too_late!(behind(second, &reads(), until).await?);
        let seen = state(first, &key).await?;
        ensure!(
            waiters(&seen) == [writer, readers] && seen.holders.len() == together.len(),
            "readers that were let in together left {seen:?}"
        );
        for read in &together {
            release(first, read).await?;
        }
        // A writer lets nobody in, and keeps no place.
        or_too_late!(comes_first(second, &writes.clone().keeping_place(), until).await?);
        let left = state(first, &key).await?;
        ensure!(
            !waiters(&left).contains(&writer),
            "a writer kept its place: {left:?}"
        );
        Ok(Lived::LongEnough)
    })
    .await
}

/// Small requests for permits wait behind a large one, and go beside it.
pub async fn permits_queue_behind_a_large_request(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("many permits")?;
        let holder = request(&key, "the holder", LONG).permits(2, 4);
        granted(first, &holder).await?;
        let [large, small] = processes();
        let large = waiting(&key, large).permits(3, 4);
        let small = waiting(&key, small).permits(1, 4);
        refused(first, &large).await?;
        let until = binding(&state(first, &key).await?);
        // Two permits are left.
        or_too_late!(behind(second, &small, until).await?);
        let tries = request(&key, "a try", LONG).permits(2, 4);
        or_too_late!(behind(second, &tries, until).await?);
        release(first, &holder).await?;
        or_too_late!(comes_first(first, &large, until).await?);
        granted(second, &small).await?;
        Ok(Lived::LongEnough)
    })
    .await
}

/// The place of a process that is gone delays nobody for longer than it counts; on a free key it delays others for a
/// moment only, and several together not for longer.
pub async fn a_process_that_is_gone_blocks_nobody(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("a writer is gone")?;
    granted(first, &request(&key, "a reader", LONG).shared()).await?;
    let [gone, reader] = processes();
    let (waiter, stays) = (gone, SHORT);
    refused(
        first,
        &waiting(&key, gone).turn(Turn::InTurn { waiter, stays }),
    )
    .await?;
    let over = after(state(first, &key).await?.now, SHORT);
    not_after(second, &waiting(&key, reader).shared(), over).await?;

    let key = fresh_key("all are gone")?;
    let holder = request(&key, "the holder", LONG);
    granted(first, &holder).await?;
    for gone in processes::<5>() {
        refused(first, &waiting(&key, gone)).await?;
    }
    let [last] = processes();
    refused(second, &waiting(&key, last)).await?;
    release(first, &holder).await?;
    let over = after(state(first, &key).await?.now, LONGEST);
    not_after(second, &waiting(&key, last), over).await?;
    let left = state(first, &key).await?.waiters;
    ensure!(left.is_empty(), "{left:?} were passed, and come first");
    Ok(())
}

/// Asks until the key is granted. A refusal at a later time than this is a violation.
async fn not_after(
    store: &Arc<dyn Store>,
    request: &AcquireRequest,
    over: DateTime<Utc>,
) -> Outcome {
    loop {
        let now = state(store, &request.key).await?.now;
        match store.acquire(request).await? {
            AcquireAnswer::Granted(_) => return Ok(()),
            AcquireAnswer::Held(held) => ensure!(
                now < over,
                "places that count until {over} block at {now}: {held:?}"
            ),
        }
        sleep(LOOK).await;
    }
}

/// A process that does not wait any more gives its place back, at once, and nothing else.
pub async fn a_place_is_given_back(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("gives its place back")?;
        let holder = request(&key, "the holder", LONG);
        granted(first, &holder).await?;
        let order @ [one, two, three] = processes();
        for waiter in order {
            refused(first, &waiting(&key, waiter)).await?;
        }
        let before = state(first, &key).await?;
        first.leave(&key, WaiterId::random()).await?;
        second.leave(&key, two).await?;
        second.leave(&key, two).await?;
        let left = state(first, &key).await?;
        if waiters(&before) != order || left.now >= binding(&before) {
            return Ok(Lived::TooShort);
        }
        ensure!(
            waiters(&left) == [one, three]
                && left.waiters[0] == before.waiters[0]
                && left.waiters[1] == before.waiters[2],
            "of {:?} the second has left {:?}",
            before.waiters,
            left.waiters
        );
        ensure!(
            (left.fence, &left.holders) == (before.fence, &before.holders),
            "a place was given back, and {before:?} became {left:?}"
        );
        release(first, &holder).await?;
        first.leave(&key, one).await?;
        granted(second, &waiting(&key, three)).await?;
        let unknown = fresh_key("nobody waits")?;
        first.leave(&unknown, one).await?;
        ensure!(
            second.inspect(&unknown).await?.is_none(),
            "a place that was not there has left a document"
        );
        Ok(Lived::LongEnough)
    })
    .await
}

/// An upgrade does not wait behind those that wait for its lease, and a downgrade lets nobody pass them.
pub async fn an_upgrade_does_not_queue(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("an upgrade")?;
        let reader = request(&key, "a reader", LONG).shared();
        granted(first, &reader).await?;
        let [writer] = processes();
        refused(second, &waiting(&key, writer)).await?;
        let before = state(first, &key).await?;
        for conversion in [
            ConvertRequest::upgrade(key.clone(), reader.lease),
            ConvertRequest::downgrade(key.clone(), reader.lease),
        ] {
            let answer = first.convert(&conversion).await?;
            ensure!(
                matches!(answer, ConvertAnswer::Converted(_)),
                "{conversion:?} was answered {answer:?} while a writer waits"
            );
        }
        let late = request(&key, "a late reader", LONG).shared();
        or_too_late!(behind(second, &late, binding(&before)).await?);
        release(first, &reader).await?;
        granted(second, &waiting(&key, writer)).await?;
        Ok(Lived::LongEnough)
    })
    .await
}

/// What changes the holders of a key leaves the places as they are.
pub async fn renewals_and_evictions_keep_the_places(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("keeps the places")?;
        let [one, two, writer] = processes();
        let reader = request(&key, "a reader", LONG).shared();
        let other = request(&key, "another reader", LONG).shared();
        for reader in [&reader, &other] {
            granted(first, reader).await?;
        }
        for waiter in [writer, one, two] {
            refused(first, &waiting(&key, waiter)).await?;
        }
        let before = state(first, &key).await?;
        let renewed = renew(second, &key, reader.lease, LONG * 2).await?;
        ensure!(matches!(renewed, RenewAnswer::Renewed(_)), "{renewed:?}");
        if waiters(&before) != [writer, one, two] {
            return Ok(Lived::TooShort);
        }
        let is_kept = async |what: &str| {
            let seen = state(first, &key).await?;
            ensure!(
                seen.waiters == before.waiters || seen.now >= binding(&before),
                "{what} left {:?} of {:?}",
                seen.waiters,
                before.waiters
            );
            Ok(())
        };
        is_kept("a renewal").await?;
        release(second, &other).await?;
        is_kept("a release").await?;
        second.evict(&key).await?;
        is_kept("an eviction").await?;
        let until = binding_if_free(&before);
        or_too_late!(behind(second, &waiting(&key, one), until).await?);
        let until = binding(&before);
        or_too_late!(comes_first(second, &waiting(&key, writer), until).await?);
        Ok(Lived::LongEnough)
    })
    .await
}

/// A process that waits for one key has no place for another.
pub async fn a_place_is_for_one_key(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let keys = [fresh_key("one")?, fresh_key("other")?];
        let holders = [0, 1].map(|number: usize| request(&keys[number], "the holder", LONG));
        for holder in &holders {
            granted(first, holder).await?;
        }
        let [waiter, late] = processes();
        refused(first, &waiting(&keys[0], waiter)).await?;
        let other = state(second, &keys[1]).await?;
        first.leave(&keys[1], waiter).await?;
        let seen = state(second, &keys[0]).await?;
        ensure!(
            other.waiters.is_empty(),
            "who waits for one key has {:?} for another",
            other.waiters
        );
        if waiters(&seen) != [waiter] {
            return Ok(Lived::TooShort);
        }
        for holder in &holders {
            release(first, holder).await?;
        }
        granted(second, &waiting(&keys[1], late)).await?;
        let until = binding_if_free(&seen);
        or_too_late!(behind(second, &waiting(&keys[0], late), until).await?);
        Ok(Lived::LongEnough)
    })
    .await
}

/// An owner that has the key enters again before all that wait, and does not stand behind its own places.
pub async fn an_owner_does_not_queue_behind_itself(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let ours = |mut request: AcquireRequest| {
            request.owner = "we".into();
            request.reentrant()
        };
        let key = fresh_key("enters again")?;
        let outer = ours(request(&key, "", LONG));
        granted(first, &outer).await?;
        let [writer, own] = processes();
        refused(second, &waiting(&key, writer)).await?;
        let before = state(first, &key).await?;
        granted(second, &ours(request(&key, "", LONG))).await?;
        granted(second, &ours(waiting(&key, own)).shared()).await?;
        let after = state(first, &key).await?;
        ensure!(
            after.waiters == before.waiters || after.now >= binding(&before),
            "an owner entered again, and {:?} became {:?}",
            before.waiters,
            after.waiters
        );

        let key = fresh_key("own place")?;
        let holder = request(&key, "the holder", LONG);
        granted(first, &holder).await?;
        refused(first, &ours(waiting(&key, own))).await?;
        let before = state(first, &key).await?;
        release(first, &holder).await?;
        let until = binding_if_free(&before);
        or_too_late!(behind(second, &request(&key, "a try", LONG), until).await?);
        let tries = ours(request(&key, "", LONG));
        granted(second, &tries).await?;
        let left = state(first, &key).await?;
        ensure!(
            left.waiters.first() == before.waiters.first() || left.now >= binding(&before),
            "who passed its own owner's place left {:?}",
            left.waiters
        );
        granted(first, &ours(waiting(&key, own))).await?;
        Ok(Lived::LongEnough)
    })
    .await
}

/// A lease in the place of another and a request that barges in pass those that wait, which keep their places.
pub async fn who_passes_the_queue_leaves_it_as_it_is(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("passes the queue")?;
        let reader = request(&key, "a reader", LONG).shared();
        granted(first, &reader).await?;
        let [writer, own] = processes();
        refused(first, &waiting(&key, writer)).await?;
        let before = state(first, &key).await?;
        let barges = request(&key, "in a hurry", LONG).shared();
        let barges = barges.turn(Turn::Barging);
        granted(second, &barges).await?;
        let instead = waiting(&key, own).shared().in_place_of(barges.lease);
        granted(second, &instead).await?;
        // It is not there any more, and who would replace it does not wait for the key.
        let late = waiting(&key, own).in_place_of(barges.lease);
        refused(first, &late).await?;
        // Both readers are in the way.
        refused(second, &waiting(&key, own).in_place_of(reader.lease)).await?;
        let left = state(first, &key).await?;
        ensure!(
            left.waiters == before.waiters || left.now >= binding(&before),
            "{:?} were passed, and {:?} are left",
            before.waiters,
            left.waiters
        );
        ensure!(left.holders.len() == 2, "{:?} read", left.holders);
        Ok(Lived::LongEnough)
    })
    .await
}

/// For how long each of many places counts: none is over before all are taken.
const MANY_STAY: Duration = Duration::from_secs(55);

/// A key has a bounded number of places. Without one a process is refused as behind all of them, and it takes the next
/// that is given back.
pub async fn a_key_has_a_bounded_number_of_places(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("many wait")?;
        granted(first, &request(&key, "the holder", LONG)).await?;
        let stays = MANY_STAY;
        let waits = |waiter| waiting(&key, waiter).turn(Turn::InTurn { waiter, stays });
        let all: [_; MAX_PLACES] = processes();
        for waiter in all {
            refused(first, &waits(waiter)).await?;
        }
        let before = state(first, &key).await?;
        let [late] = processes();
        let held = refused(second, &waits(late)).await?;
        let full = state(first, &key).await?;
        if waiters(&before) != all || full.now >= binding(&before) {
            ensure!(full.waiters.len() <= MAX_PLACES, "{full:?}");
            return Ok(Lived::TooShort);
        }
        ensure!(
            held.ahead() == MAX_PLACES && full.waiters == before.waiters,
            "one too many was answered {held:?}, and {} wait",
            full.waiters.len()
        );
        first.leave(&key, all[7]).await?;
        refused(second, &waits(late)).await?;
        let left = state(first, &key).await?;
        if left.now >= binding(&before) {
            return Ok(Lived::TooShort);
        }
        ensure!(
            left.waiters.len() == MAX_PLACES && waiters(&left).last() == Some(&late),
            "{} wait, the last of which is {:?}",
            left.waiters.len(),
            left.waiters.last()
        );
        Ok(Lived::LongEnough)
    })
    .await
}

/// A refused request that does not wait writes nothing, whoever waits; nor does one whose place has lost little of its
/// time.
pub async fn a_refusal_without_a_place_writes_nothing(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("writes nothing")?;
        let holder = request(&key, "the holder", LONG);
        granted(first, &holder).await?;
        let [waiter] = processes();
        refused(first, &waiting(&key, waiter)).await?;
        let before = state(first, &key).await?;
        for request in [
            request(&key, "a try", LONG),
            request(&key, "a reader", LONG).shared(),
            request(&key, "in a hurry", LONG).turn(Turn::Barging),
            request(&key, "looks", LONG).likely_held(),
            request(&key, "a fresh one", LONG).fresh(),
        ] {
            refused(second, &request).await?;
        }
        refused(second, &waiting(&key, waiter)).await?;
        refused(second, &waiting(&key, waiter).likely_held()).await?;
        release(first, &holder).await?;
        let until = binding_if_free(&before);
        or_too_late!(behind(second, &request(&key, "a try", LONG), until).await?);
        let left = state(first, &key).await?;
        // A place that has lost some of its time by now may have been written for longer.
        let mut kept = before.waiters.clone();
        for (old, place) in kept.iter_mut().zip(&left.waiters) {
            if left.now >= after(old.since, WORTH_A_WRITE) {
                old.until = old.until.max(place.until);
            }
        }
        ensure!(
            left.waiters == kept && left.fence == before.fence,
            "refusals made {before:?} to {left:?}"
        );
        Ok(Lived::LongEnough)
    })
    .await
}

/// In one call with others, an acquire stands behind those that wait, and takes a place.
pub async fn a_batch_keeps_the_queue(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let [read, free, held] = [fresh_key("read")?, fresh_key("free")?, fresh_key("held")?];
        granted(first, &request(&read, "a reader", LONG).shared()).await?;
        granted(first, &request(&held, "the holder", LONG)).await?;
        let [writer, other] = processes();
        refused(first, &waiting(&read, writer)).await?;
        refused(first, &waiting(&held, writer)).await?;
        let before = state(first, &read).await?;
        let requests = [
            request(&read, "a late reader", LONG).shared(),
            waiting(&free, other),
            waiting(&held, other).shared(),
        ];
        let batch = requests.map(|request| BatchRequest::Acquire(Arc::new(request)));
        let answers = second.batch(&batch).await?;
        let waits = state(first, &held).await?;
        let left = state(first, &read).await?;
        if left.now >= binding(&before) {
            return Ok(Lived::TooShort);
        }
        use AcquireAnswer::{Granted, Held};
        let is_right = matches!(
            &answers[..],
            [
                Ok(BatchAnswer::Acquire(Held(behind))),
                Ok(BatchAnswer::Acquire(Granted(_))),
                Ok(BatchAnswer::Acquire(Held(waits))),
            ] if behind.ahead() == 1 && waits.ahead() == 1
        );
        ensure!(is_right, "{batch:?} were answered {answers:?}");
        ensure!(
            waiters(&waits) == [writer, other] && waits.waiters[1].mode == Mode::Shared,
            "in a batch a process took no place: {:?}",
            waits.waiters
        );
        ensure!(
            left.waiters == before.waiters,
            "{:?} became {:?}",
            before.waiters,
            left.waiters
        );
        let free = state(first, &free).await?.waiters;
        ensure!(free.is_empty(), "{free:?} wait for a key that was free");
        Ok(Lived::LongEnough)
    })
    .await
}

/// How many processes race for a key, and how many times each.
const RACERS: usize = 8;
const ROUNDS: usize = 3;

/// Of processes that all go on asking at the same time, each is granted the key in the end, one after the other, and no
/// place is left.
pub async fn all_that_go_on_asking_are_granted_the_key(clients: &Clients) -> Outcome {
    let key = fresh_key("all take turns")?;
    let race = (0..RACERS).map(|number| {
        let (store, key) = (clients.of_task(number), key.clone());
        let [waiter] = processes();
        tokio::spawn(async move {
            let mut fences = Vec::new();
            for _ in 0..ROUNDS {
                let asks = waiting(&key, waiter);
                let start = Instant::now();
                let grant = loop {
                    match store.acquire(&asks).await? {
                        AcquireAnswer::Granted(grant) => break grant,
                        AcquireAnswer::Held(held) if start.elapsed() > PATIENCE => {
                            return violation(format!("a process waits for ever: {held:?}"));
                        }
                        AcquireAnswer::Held(_) => sleep(LOOK).await,
                    }
                };
                fences.push(grant.fence);
                sleep(LOOK).await;
                let holders = state(&store, &key).await?.holders;
                ensure!(
                    holders.len() == 1 && holders[0].lease == asks.lease,
                    "{holders:?} have a key that {} has",
                    asks.owner
                );
                release(&store, &asks).await?;
            }
            Ok(fences)
        })
    });
    let mut fences = Vec::new();
    for granted in join_all(race).await {
        fences.extend(granted??);
    }
    fences.sort_unstable();
    fences.dedup();
    ensure!(
        fences.len() == RACERS * ROUNDS,
        "{RACERS} processes have had {} grants",
        fences.len()
    );
    let left = state(&clients.first, &key).await?.waiters;
    ensure!(left.is_empty(), "nobody asks any more, and {left:?} wait");
    Ok(())
}
