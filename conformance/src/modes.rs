//! Shared leases, permits, re-entry, conversion, several keys, minimum hold, notes and tickets.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    Clients, LONG, LOOK, Outcome, PATIENCE, SHORT, ensure, fresh_key,
    guard::{pair, patient},
    request, sole_holder, state,
    steps::{release, until_waited_for},
    until_free, violation,
};
use leasehold::{
    Attempt, Error, Key, Lease, Mode, Resumed, TryAcquire, Upgrade,
    store::{
        AcquireAnswer, LeaseId, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Turn,
    },
};

/// Readers share the key and keep a writer out. When the last reader has left, the writer gets the key, and keeps
/// readers out.
pub async fn readers_and_a_writer_take_turns(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    // A process that has the key itself refuses a try without asking the store.
    let (another, fresh) = pair(clients);
    let key = fresh_key("readers and a writer")?;
    let one = granted(first.try_acquire(&key, LONG).shared()).await?;
    let two = granted(second.try_acquire(&key, LONG).shared()).await?;
    let three = granted(another.try_acquire(&key, LONG).shared()).await?;
    ensure!(
        one.fence() < two.fence() && two.fence() < three.fence(),
        "the fences of readers did not rise"
    );
    let found = state(&clients.second, &key).await?;
    ensure!(
        found.holders.len() == 3 && found.holders.iter().all(|it| it.mode == Mode::Shared),
        "three readers are shown as {:?}",
        found.holders
    );
    refused(fresh.try_acquire(&key, LONG), 3).await?;
    one.release().await?;
    two.release().await?;
    refused(second.try_acquire(&key, LONG), 1).await?;
    three.renew().await?;
    three.release().await?;
    let writer = granted(second.try_acquire(&key, LONG)).await?;
    refused(first.try_acquire(&key, LONG).shared(), 1).await?;
    refused(first.try_acquire(&key, LONG).permits(1, 9), 1).await?;
    writer.release().await?;
    granted(first.try_acquire(&key, LONG).shared())
        .await?
        .release()
        .await?;
    Ok(())
}

/// Many readers of one process that wait together all get the key, and no writer of another process gets it beside
/// them.
pub async fn many_readers_and_a_writer_all_get_the_key(clients: &Clients) -> Outcome {
    const READERS: usize = 40;
    let (first, second) = pair(clients);
    let key = fresh_key("many readers")?;
    let before = request(&key, "before them", LONG);
    super::granted(&clients.second, &before).await?;
    let tasks = (0..=READERS).map(|number| {
        let writes = number == READERS / 2;
        let asking = if writes {
            second.acquire(&key, LONG)
        } else {
            first.acquire(&key, LONG).shared()
        };
        let (key, store) = (key.clone(), clients.second.clone());
        tokio::spawn(async move {
            let lease = asking.wait_for(PATIENCE).await?;
            let holders = state(&store, &key).await?.holders;
            let others = holders.iter().filter(|it| it.lease != lease.id());
            let mut modes = others.map(|it| it.mode);
            ensure!(
                modes.all(|mode| !writes && mode == Mode::Shared),
                "a writer and others have the key at the same time: {holders:?}"
            );
            sleep(LOOK).await;
            lease.release().await?;
            Ok(())
        })
    });
    let tasks: Vec<_> = tasks.collect();
    sleep(LOOK).await;
    release(&clients.second, &before).await?;
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Each reader has its own expiry. A reader that has died stops blocking the writer when its own ttl is over, however
/// long another reader lives.
pub async fn a_reader_that_is_gone_blocks_nobody(clients: &Clients) -> Outcome {
    let (_, second) = pair(clients);
    let key = fresh_key("crashed reader")?;
    let gone = request(&key, "gone", SHORT).shared();
    super::granted(&clients.first, &gone).await?;
    let other = granted(second.try_acquire(&key, LONG).shared()).await?;
    other.renew().await?;
    other.release().await?;
    let waiting = second.acquire(&key, LONG).wait_for(PATIENCE);
    waiting.await?.release().await?;
    Ok(())
}

/// A reader that has expired stays in the document until the next grant. So the answer to its late renewal is that it
/// has expired, and not that another holder has taken the key. This is true even after another reader, which expired
/// later, has released its lease.
pub async fn a_reader_that_has_expired_is_told_so_after_another_has_left(
    clients: &Clients,
) -> Outcome {
    let mut ttl = SHORT;
    let (key, early, late) = loop {
        let key = fresh_key("expired readers")?;
        let early = request(&key, "early", ttl).shared();
        let late = request(&key, "late", ttl).shared();
        super::granted(&clients.first, &early).await?;
        super::granted(&clients.second, &late).await?;
        // A later grant removes this reader if it has expired by then, which can happen where a grant takes long.
        if state(&clients.second, &key).await?.holders.len() == 2 {
            break (key, early, late);
        }
        ttl *= 2;
    };
    until_free(&clients.second, &key).await?;
    let left = ReleaseRequest::new(key.clone(), late.lease);
    let left = clients.second.release(&left).await?;
    ensure!(
        left == ReleaseAnswer::Released,
        "the later one was {left:?}"
    );
    let renewal = RenewRequest::new(key, early.lease, LONG);
    let renewed = clients.first.renew(&[renewal]).await?;
    ensure!(
        matches!(&renewed[..], [Ok(RenewAnswer::Expired)]),
        "the renewal of the earlier one was {renewed:?}"
    );
    Ok(())
}

/// Tasks that race for permits never hold more permits than exist, and every task gets its permits in the end.
pub async fn permits_are_never_more_than_there_are(clients: &Clients) -> Outcome {
    const CAPACITY: u32 = 3;
    let (first, second) = pair(clients);
    let key = fresh_key("permits")?;
    let tasks = (0..12_u32).map(|number| {
        let leases = if number.is_multiple_of(2) {
            first.clone()
        } else {
            second.clone()
        };
        let (key, permits, store) = (key.clone(), number % 2 + 1, clients.second.clone());
        tokio::spawn(async move {
            let asking = leases.acquire(&key, LONG).permits(permits, CAPACITY);
            let lease = asking.wait_for(PATIENCE).await?;
            let holders = state(&store, &key).await?.holders;
            let taken: i64 = holders.iter().map(|holder| holder.permits).sum();
            ensure!(
                taken <= CAPACITY.into(),
                "{taken} of {CAPACITY} permits are taken"
            );
            sleep(LOOK).await;
            lease.release().await?;
            Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    let two = granted(first.try_acquire(&key, LONG).permits(2, CAPACITY)).await?;
    refused(second.try_acquire(&key, LONG).permits(2, CAPACITY), 1).await?;
    let one = granted(second.try_acquire(&key, LONG).permits(1, CAPACITY)).await?;
    let third = patient(&clients.first);
    refused(third.try_acquire(&key, LONG).shared(), 2).await?;
    refused(third.try_acquire(&key, LONG), 2).await?;
    two.release().await?;
    one.release().await?;
    Ok(())
}

/// The same owner is granted the key again at once, with the same fence. The key is free when the last of its leases is
/// released.
pub async fn an_owner_enters_again(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("again")?;
    let outer = granted(first.try_acquire(&key, LONG).owner("process 7")).await?;
    refused(second.try_acquire(&key, LONG).owner("process 7"), 1).await?;
    refused(
        second
            .try_acquire(&key, LONG)
            .owner("process 8")
            .reentrant(),
        1,
    )
    .await?;
    let inner = second
        .acquire(&key, LONG)
        .owner("process 7")
        .reentrant()
        .await?;
    ensure!(
        inner.fence() == outer.fence(),
        "entered again with the fence {} under {}",
        inner.fence(),
        outer.fence()
    );
    outer.release().await?;
    refused(first.try_acquire(&key, LONG), 1).await?;
    inner.release().await?;
    let next = granted(first.try_acquire(&key, LONG).owner("process 8")).await?;
    next.release().await?;
    Ok(())
}

/// An owner takes over its own lease at once, before all who wait, with a greater fence. Its old lease is over, and the
/// leases of others are not affected.
pub async fn an_owner_takes_over_its_own_leases(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("take-over")?;
    let dead = granted(first.try_acquire(&key, LONG).owner("worker 7")).await?;
    let other = second.try_acquire(&key, LONG).owner("worker 8");
    refused(other.take_over(), 1).await?;
    // Somebody waits for the key. It would be its turn.
    let mut waiting = request(&key, "worker 9", LONG);
    waiting.turn = Turn::in_turn(LeaseId::random(), LONG);
    let held = clients.first.acquire(&waiting).await?;
    ensure!(matches!(held, AcquireAnswer::Held(_)), "held: {held:?}");
    let asked = request(&key, "worker 7", LONG).take_over([dead.id()]);
    for store in [&clients.second, &clients.first] {
        let answer = store.acquire(&asked).await?;
        let AcquireAnswer::Granted(grant) = answer else {
            return violation(format!("its own lease is in its way: {answer:?}"));
        };
        ensure!(
            grant.fence > dead.fence(),
            "taken over with the fence {} after {}",
            grant.fence,
            dead.fence()
        );
        let holders = first.inspect(&key).await?.map(|it| it.holders);
        let leases = holders.iter().flatten().map(|it| it.lease);
        let leases: Vec<_> = leases.collect();
        ensure!(
            leases == [asked.lease],
            "after a take-over {leases:?} hold the key"
        );
    }
    ensure!(dead.renew().await.is_err(), "the old lease was renewed");
    // A request that names the old lease is carried out late.
    let late = request(&key, "worker 7", LONG).take_over([dead.id()]);
    let late = clients.second.acquire(&late).await?;
    ensure!(matches!(late, AcquireAnswer::Held(_)), "late: {late:?}");
    drop(dead);
    // Of two readers it takes over its own, and it does not become a writer beside the other one.
    let key = fresh_key("take-over")?;
    let reader = |owner| first.try_acquire(&key, LONG).shared().owner(owner);
    let (mine, theirs) = (
        granted(reader("worker 7")).await?,
        granted(reader("worker 8")).await?,
    );
    let writer = second.try_acquire(&key, LONG).owner("worker 7");
    refused(writer.take_over(), 2).await?;
    mine.renew().await?;
    let reader = second.try_acquire(&key, LONG).shared().owner("worker 7");
    let again = granted(reader.take_over()).await?;
    ensure!(mine.renew().await.is_err(), "the old reader was renewed");
    theirs.renew().await?;
    again.release().await?;
    theirs.release().await?;
    Ok(())
}

/// A reader becomes the writer only when it is the only holder, with a new fence. A writer that becomes a reader lets
/// other readers in at once.
pub async fn leases_are_upgraded_and_downgraded(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("upgrade")?;
    let one = granted(first.try_acquire(&key, LONG).shared()).await?;
    let two = granted(second.try_acquire(&key, LONG).shared()).await?;
    for lease in [&one, &two] {
        match lease.upgrade().await? {
            Upgrade::Held(held) => ensure!(
                held.holders().len() == 1 && held.holders()[0].lease != lease.id(),
                "in the way of an upgrade is {held:?}"
            ),
            Upgrade::Exclusive => return violation("one of two readers became a writer"),
        }
    }
    let newest = two.fence();
    two.release().await?;
    ensure!(
        one.upgrade().await? == Upgrade::Exclusive && one.mode() == Mode::Exclusive,
        "the only reader could not become a writer"
    );
    ensure!(
        one.fence() > newest,
        "an upgrade has the fence {}, and a reader before it had {newest}",
        one.fence()
    );
    one.renew().await?;
    refused(second.try_acquire(&key, LONG).shared(), 1).await?;
    let waiting = tokio::spawn({
        let (first, key) = (first.clone(), key.clone());
        async move { first.acquire(&key, LONG).shared().wait_for(PATIENCE).await }
    });
    sleep(LOOK).await;
    one.downgrade().await?;
    let beside = waiting.await??;
    ensure!(one.mode() == Mode::Shared, "a downgrade left it exclusive");
    beside.release().await?;
    first.evict(&key).await?;
    let gone = one.upgrade().await;
    ensure!(
        matches!(gone, Err(Error::Lost { .. })),
        "the upgrade of an evicted lease ended with {gone:?}"
    );
    Ok(())
}

/// Several keys are acquired all or none, in whatever order the caller names them.
pub async fn several_keys_are_taken_all_or_none(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let (a, b, c) = (
        fresh_key("all a")?,
        fresh_key("all b")?,
        fresh_key("all c")?,
    );
    let both = first.acquire_all([&b, &a, &b], LONG).await?;
    let keys: Vec<_> = both.leases().iter().map(Lease::key).collect();
    ensure!(
        keys == [&a, &b],
        "of {b}, {a} and {b} these were taken: {keys:?}"
    );
    let none = second.acquire_all([&c, &b], LONG).wait_for(SHORT).await;
    ensure!(
        matches!(none, Err(Error::WaitTimedOut { .. })),
        "a set with a held key ended with {none:?}"
    );
    until_free(&clients.first, &c).await?;
    both.release().await?;
    for key in [&a, &b] {
        ensure!(state(&clients.first, key).await?.is_free(), "{key} is held");
    }
    Ok(())
}

/// A set waits in turn for the key that it asks for. It has neither the keys that come after that one, nor a place for
/// them.
pub async fn a_set_waits_in_turn_for_one_key_at_a_time(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let keys = [fresh_key("set 1")?, fresh_key("set 2")?];
    let mut holders = Vec::new();
    for key in &keys {
        holders.push(granted(first.try_acquire(key, LONG)).await?);
    }
    let [asked_first, asked_last] = &keys;
    let set = second.acquire_all([asked_last, asked_first], LONG);
    let set = tokio::spawn(set.wait_for(PATIENCE).into_future());
    for (waits, goes_on, holder) in [
        (asked_first, asked_last, holders.remove(0)),
        (asked_last, asked_first, holders.remove(0)),
    ] {
        until_waited_for(&clients.first, waits).await?;
        let other = state(&clients.first, goes_on).await?;
        ensure!(
            other.waiters.is_empty(),
            "a set that waits for {waits} has a place for {goes_on}"
        );
        holder.release().await?;
    }
    set.await??.release().await?;
    for key in &keys {
        let left = state(&clients.first, key).await?.waiters;
        ensure!(left.is_empty(), "{key} has places after a grant: {left:?}");
    }
    Ok(())
}

/// Callers who name the same keys in different orders never deadlock.
pub async fn opposite_orders_do_not_deadlock(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let keys: Vec<Key> = (0..10)
        .map(|_| fresh_key("circle"))
        .collect::<Result<_, _>>()?;
    let tasks = (0..50).map(|number: usize| {
        let leases = if number.is_multiple_of(2) {
            first.clone()
        } else {
            second.clone()
        };
        let mut wanted = vec![
            keys[number % 10].clone(),
            keys[(number * 7 + 3) % 10].clone(),
        ];
        if number % 4 < 2 {
            wanted.reverse();
        }
        tokio::spawn(async move {
            let set = leases.acquire_all(&wanted, LONG).wait_for(PATIENCE).await?;
            ensure!(set.is_live(), "a set is lost as it is granted");
            set.release().await?;
            Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    Ok(())
}

/// A job that ends early blocks the next one until its minimum hold is over, by the server's clock. Nobody can release
/// that hold.
pub async fn a_minimum_hold_outlasts_the_release(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("minimum hold")?;
    let hold = SHORT;
    let job = granted(
        first
            .try_acquire(&key, LONG)
            .min_hold(hold)
            .note("nightly run"),
    )
    .await?;
    let holder = sole_holder(&clients.second, &key).await?;
    ensure!(
        holder.note.as_deref() == Some("nightly run"),
        "the note is shown as {:?}",
        holder.note
    );
    let (end, fence) = (super::after(job.acquired_at(), hold), job.fence());
    job.release().await?;
    let next = second.acquire(&key, LONG).wait_for(PATIENCE).await?;
    ensure!(
        next.acquired_at() >= end && next.fence() > fence,
        "a key with a minimum hold until {end} was granted at {}",
        next.acquired_at()
    );
    next.release().await?;
    let over = granted(
        first
            .try_acquire(&key, LONG)
            .min_hold(Duration::from_millis(1)),
    )
    .await?;
    sleep(LOOK).await;
    over.release().await?;
    until_free(&clients.second, &key).await
}

/// A lease passes from one process to another with its fence. A ticket whose lease has ended gets an answer, not an
/// error.
pub async fn a_lease_goes_on_in_another_process(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("ticket")?;
    let lease = granted(first.try_acquire(&key, LONG).shared()).await?;
    let (id, fence) = (lease.id(), lease.fence());
    let ticket = lease.into_ticket();
    let holder = sole_holder(&clients.second, &key).await?;
    ensure!(holder.lease == id, "{holder:?} holds the key of a ticket");
    let Resumed::Live(resumed) = second.resume(&ticket).keep_alive().await? else {
        return violation("a live lease could not be resumed");
    };
    ensure!(
        resumed.id() == id && resumed.fence() == fence && resumed.mode() == Mode::Shared,
        "resumed as {resumed:?}"
    );
    resumed.renew().await?;
    resumed.release().await?;
    match first.resume(&ticket).await? {
        Resumed::Gone(_) => Ok(()),
        Resumed::Live(lease) => violation(format!("a released lease was resumed as {lease:?}")),
    }
}

async fn granted(attempt: TryAcquire) -> Result<Lease, super::Violation> {
    match attempt.await? {
        Attempt::Acquired(lease) => Ok(lease),
        Attempt::Held(held) => violation(format!("refused: {held:?}")),
    }
}

/// Checks that an attempt is refused, with this many live holders.
async fn refused(attempt: TryAcquire, holders: usize) -> Outcome {
    match attempt.await? {
        Attempt::Held(held) => {
            ensure!(
                held.holders().len() == holders,
                "{holders} holders are in the way, and {held:?} was told"
            );
            Ok(())
        }
        Attempt::Acquired(lease) => violation(format!("{lease:?} was granted beside others")),
    }
}
