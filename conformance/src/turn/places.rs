//! How a place is taken, how long it counts, and when it ends.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::time::{Instant, sleep};

use super::{
    STAYS, behind, binding, binding_if_free, comes_first, in_time, processes, release, waiters,
    waiting,
};
use crate::{
    Clients, LONG, LOOK, Lived, Outcome, PATIENCE, SHORT, after, ensure, fresh_key, granted,
    no_tick, refused, renew, request, state, violation, with_time_enough,
};
use leasehold::{
    Filter, Mode, Store,
    limits::{MAX_PLACE_TIME, MAX_PLACES},
    rules::turn::{MAX_BIND_TIME, WORTH_A_WRITE},
    store::{AcquireAnswer, AcquireRequest, LeaseId, ListRequest, RenewAnswer, Turn},
};

/// How long each of many places counts, so that none ends before all are taken.
const MANY_STAY: Duration = Duration::from_secs(55);

/// The state of a key shows which processes wait for it, what for, since when, and until when their places count.
pub async fn a_place_tells_who_waits(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("who waits")?;
        granted(first, &request(&key, "the holder", LONG)).await?;
        let before = state(first, &key).await?.now;
        let order: [_; 3] = processes();
        let [one, two, three] = order.map(|waiter| waiting(&key, waiter));
        let requests = [one, two.shared(), three.permits(3, 7)?];
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
        // The list of a search engine may be a moment out of date.
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

/// A process keeps its place by asking again, and takes no second place.
pub async fn a_place_lasts_while_its_process_asks(clients: &Clients) -> Outcome {
    with_time_enough(async |stays| {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("goes on asking")?;
        granted(first, &request(&key, "the holder", LONG)).await?;
        let [waiter, other] = processes();
        let stays = stays.min(STAYS);
        let asks = waiting(&key, waiter).turn(Turn::in_turn(waiter, stays));
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

/// A place counts for as long as its process was told. This is true even if another task of the process asks in that
/// place, in another mode, and announces to ask again sooner. No place counts for longer than [`MAX_PLACE_TIME`].
pub async fn a_place_counts_for_as_long_as_was_told(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("another task")?;
        granted(first, &request(&key, "the holder", LONG)).await?;
        let [waiter] = processes();
        refused(first, &waiting(&key, waiter)).await?;
        let told = state(first, &key).await?.waiters;
        let next = waiting(&key, waiter).shared();
        refused(second, &next.turn(Turn::in_turn(waiter, SHORT))).await?;
        let seen = state(first, &key).await?;
        let [told] = &told[..] else {
            return Ok(Lived::TooShort);
        };
        if seen.now >= told.until {
            return Ok(Lived::TooShort);
        }
        let expected = (waiter, Mode::Shared, told.since, told.until);
        let places = seen.waiters.iter();
        let found: Vec<_> = places
            .map(|it| (it.waiter, it.mode, it.since, it.until))
            .collect();
        ensure!(found == [expected], "{told:?} became {:?}", seen.waiters);

        let key = fresh_key("for ever")?;
        granted(first, &request(&key, "the holder", LONG)).await?;
        let before = state(first, &key).await?.now;
        let turn = Turn::in_turn(waiter, 2 * MAX_PLACE_TIME);
        refused(second, &waiting(&key, waiter).turn(turn)).await?;
        let seen = state(first, &key).await?;
        match &seen.waiters[..] {
            [place] => ensure!(
                place.until == after(place.since, MAX_PLACE_TIME),
                "a process that wanted a place for longer than there is has {place:?}"
            ),
            [] if seen.now >= after(before, MAX_PLACE_TIME) => return Ok(Lived::TooShort),
            places => return violation(format!("one process waits, and has {places:?}")),
        }
        Ok(Lived::LongEnough)
    })
    .await
}

/// The place of a process that has died delays others for no longer than the place counts. On a free key it delays them
/// for a short time only, and several such places together do not delay them for longer.
pub async fn a_process_that_is_gone_blocks_nobody(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("a writer is gone")?;
    granted(first, &request(&key, "a reader", LONG).shared()).await?;
    let [gone, reader] = processes();
    refused(first, &waiting(&key, gone).turn(Turn::in_turn(gone, SHORT))).await?;
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
    let over = after(state(first, &key).await?.now, MAX_BIND_TIME);
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
            AcquireAnswer::Done(done) => return no_tick(&done),
        }
        sleep(LOOK).await;
    }
}

/// A process that stops waiting gives up its place at once, and nothing else changes.
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
        first.leave(&key, LeaseId::random()).await?;
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

/// Changes of the holders of a key leave the places as they are.
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

/// A key has a bounded number of places. A process without a place is refused as if it were behind all of them, and
/// takes the next place that is given up.
pub async fn a_key_has_a_bounded_number_of_places(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("many wait")?;
        granted(first, &request(&key, "the holder", LONG)).await?;
        let waits = |waiter| waiting(&key, waiter).turn(Turn::in_turn(waiter, MANY_STAY));
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

/// A refused request that does not wait writes nothing, whichever processes wait. Nor does one whose place has lost
/// little of its time.
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
        // A place that has lost some of its time by now may have been extended.
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
