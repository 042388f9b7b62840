//! How long a store keeps that a tick is done.

use std::time::Duration;

use futures::TryStreamExt;
use tokio::time::{Instant, sleep};

use super::{asks, complete, does, last, told_done};
use crate::{
    Clients, LONG, LOOK, Outcome, PATIENCE, SHORT, after, ensure, fresh_key, granted, refused,
    release, renew, request, state,
};
use leasehold::{
    Filter, Leases,
    jobs::Tick,
    store::{BatchRequest, ConvertRequest, LeaseId, ReleaseAnswer, ReleaseRequest, Turn},
};

/// The done tick stays in the document, however other leases are granted and end.
pub async fn what_is_done_outlives_what_happens_to_the_key(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("stays done")?;
    let tick = Tick::counter(7);
    does(first, &key, "who does it", tick).await?;
    let done = last(first, &key).await?;
    let is_known = async |what: &str| {
        let found = last(second, &key).await?;
        ensure!(found == done, "{what} made {done:?} to {found:?}");
        Ok::<_, crate::Violation>(())
    };
    for (mode, modes) in ["exclusive", "fresh", "shared", "permits"].iter().zip(0..) {
        let ask = |owner: &str| {
            let ask = request(&key, owner, LONG).turn(Turn::Barging);
            Ok::<_, leasehold::Error>(match modes {
                0 => ask,
                1 => ask.fresh(),
                2 => ask.shared(),
                _ => ask.permits(1, 4)?,
            })
        };
        let lease = ask("holder")?;
        granted(first, &lease).await?;
        is_known(&format!("a grant ({mode})")).await?;
        renew(second, &key, lease.lease, LONG * 2).await?;
        is_known("a renewal").await?;
        if modes >= 2 {
            let beside = ask("beside it")?;
            granted(second, &beside).await?;
            is_known("a grant beside another").await?;
            release(first, &beside).await?;
            is_known("a release beside another").await?;
        }
        let waits = request(&key, "waits", LONG).turn(Turn::in_turn(LeaseId::random(), SHORT));
        refused(second, &waits).await?;
        is_known("a refusal that takes a place").await?;
        let plain = ReleaseRequest::new(key.clone(), lease.lease);
        let ends = match modes {
            0 => plain.likely_sole(),
            1 => plain.likely_sole().undoable(),
            2 => plain,
            _ => plain.min_hold(SHORT, LeaseId::random()),
        };
        first.release(&ends).await?;
        is_known("a release").await?;
        second.evict(&key).await?;
        is_known("an eviction").await?;
    }
    let reader = request(&key, "a reader", LONG).shared().turn(Turn::Barging);
    granted(first, &reader).await?;
    for conversion in [
        ConvertRequest::upgrade(key.clone(), reader.lease),
        ConvertRequest::downgrade(key.clone(), reader.lease),
    ] {
        first.convert(&conversion).await?;
        is_known("a conversion").await?;
    }
    let other = fresh_key("beside it")?;
    release(first, &reader).await?;
    let batch = [&key, &other].map(|key| request(key, "many", LONG).turn(Turn::Barging));
    let acquires = batch.clone().map(|it| BatchRequest::Acquire(it.into()));
    for answer in second.batch(&acquires).await? {
        answer?;
    }
    is_known("a batch of acquires").await?;
    let releases = batch.map(|it| ReleaseRequest::new(it.key, it.lease).likely_sole());
    for answer in second.batch(&releases.map(BatchRequest::Release)).await? {
        answer?;
    }
    is_known("a batch of releases").await?;
    // A job for a later tick, which fails.
    let fails = asks(&key, "it fails", Tick::counter(8)).turn(Turn::Barging);
    granted(first, &fails).await?;
    is_known("a grant for a later tick").await?;
    release(first, &fails).await?;
    is_known("a later tick that was not done").await?;
    let told = told_done(first, &asks(&key, "another", tick)).await?;
    ensure!(Some(&told) == done.as_ref(), "{told:?} is told of {done:?}");
    // A later tick that is kept for less time does not shorten the retention of the earlier tick.
    let later = asks(&key, "the next", Tick::counter(8)).turn(Turn::Barging);
    granted(second, &later).await?;
    let moment = Duration::from_millis(1);
    let release = ReleaseRequest::new(key.clone(), later.lease).done(Tick::counter(8), moment);
    let answer = second.release(&release).await?;
    let kept = last(first, &key).await?;
    ensure!(
        answer == ReleaseAnswer::Released
            && kept.as_ref().map(|it| (it.tick, it.until))
                == done.as_ref().map(|it| (Tick::counter(8), it.until)),
        "a tick that is to be kept for {moment:?} made {done:?} to {kept:?}"
    );
    Ok(())
}

/// Both ways of clean-up keep a document with a done tick for as long as the job said, and remove it after that. The
/// tick is then granted again.
pub async fn a_clean_up_waits_for_what_is_done(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let tick = Tick::counter(7);
    let does_for = async |name, kept_for| {
        let lease = asks(&fresh_key(name)?, "who does it", tick);
        granted(first, &lease).await?;
        let release = ReleaseRequest::new(lease.key.clone(), lease.lease);
        first.release(&release.done(tick, kept_for)).await?;
        Ok::<_, crate::Violation>(lease.key)
    };
    let kept = [
        does_for("kept long", LONG).await?,
        does_for("kept for ever", Duration::MAX).await?,
    ];
    let brief = [
        does_for("kept for a moment", SHORT).await?,
        does_for("kept for a moment", SHORT).await?,
    ];
    let mut ends = Vec::new();
    for key in &brief {
        ends.extend(last(second, key).await?.map(|done| done.until));
    }
    ensure!(ends.len() == brief.len(), "what was done is not shown");
    // This lock has a later fence than the others. So once it is removed, only the done tick prevents their removal.
    let ordinary = request(&fresh_key("an ordinary lock")?, "holder", LONG);
    granted(first, &ordinary).await?;
    release(first, &ordinary).await?;
    let start = Instant::now();
    let [mut is_removed, mut is_purged] = [false; 2];
    let mut is_ordinary_gone = false;
    while !(is_removed && is_purged && is_ordinary_gone) {
        ensure!(
            start.elapsed() < PATIENCE,
            "a clean-up never removes what may be forgotten"
        );
        if !is_removed {
            is_removed = second.remove_expired(&brief[0]).await?;
            let now = state(first, &kept[0]).await?.now;
            ensure!(
                !is_removed || now >= ends[0],
                "at {now} a clean-up removed what is kept until {}",
                ends[0]
            );
        }
        second.purge(Duration::ZERO).await?;
        is_purged = first.inspect(&brief[1]).await?.is_none();
        // A concurrent purge may have removed it before.
        is_removed = is_removed || first.inspect(&brief[0]).await?.is_none();
        let now = state(first, &kept[0]).await?.now;
        ensure!(
            !is_purged || now >= ends[1],
            "at {now} a purge removed what is kept until {}",
            ends[1]
        );
        is_ordinary_gone = first.inspect(&ordinary.key).await?.is_none();
        sleep(LOOK).await;
    }
    for key in &kept {
        ensure!(
            !second.remove_expired(key).await?,
            "a clean-up removed what is done"
        );
        second.purge(Duration::ZERO).await?;
        for number in [6, 7] {
            told_done(second, &asks(key, "another", Tick::counter(number))).await?;
        }
    }
    for key in &brief {
        does(second, key, "again", tick).await?;
    }
    Ok(())
}

/// An inspection and a list show the newest done tick: when and by whom it was done, and until when it is kept.
pub async fn a_list_shows_what_is_done(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("shown")?;
    let plain = request(&key, "no job", LONG);
    granted(first, &plain).await?;
    release(first, &plain).await?;
    let done = last(second, &key).await?;
    ensure!(done.is_none(), "nothing is done, and {done:?} is shown");
    let leases = Leases::new(second.clone());
    for number in [6, 8] {
        let lease = asks(&key, "who does it", Tick::counter(number));
        let grant = granted(first, &lease).await?;
        let answer = complete(first, &lease).await?;
        ensure!(answer == ReleaseAnswer::Released, "{answer:?}");
        let seen = state(second, &key).await?;
        let Some(done) = seen.done else {
            return crate::violation("what is done is not shown");
        };
        ensure!(
            (done.tick, &*done.by, done.lease)
                == (Tick::counter(number), "who does it", lease.lease),
            "{number} is done, and that is shown as {done:?}"
        );
        ensure!(
            grant.acquired_at <= done.at
                && done.at <= seen.now
                && done.until == after(done.at, LONG),
            "granted at {}, seen at {}, kept for {LONG:?}: {done:?}",
            grant.acquired_at,
            seen.now
        );
        let listed = leases.list(Filter::new().prefix(key.as_str()));
        let listed: Vec<_> = listed.try_collect().await?;
        let is_listed = matches!(&listed[..], [state] if state.done.as_ref() == Some(&done));
        ensure!(is_listed, "{done:?} is listed as {listed:?}");
    }
    Ok(())
}
