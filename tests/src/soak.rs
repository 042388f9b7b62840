//! Ordinary work: many tasks take, keep, release and drop leases on a few keys. Whatever the
//! network does meanwhile, a live holder is alone, fences rise, no lease is lost that could have been
//! kept, and at the end every key is free.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail, ensure};
use fastrand::Rng;
use leasehold::{
    Acquire, Error, Fence, Lease, Leases, LossReason, Store, WithError, store::LeaseId,
};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    patient,
    renewal_log::{RenewalLog, Renewals},
    stalls::Stalls,
};

/// A kept lease is renewed after 3 s, and without an answer again at 4.5 s, 6 s and 7.5 s.
const KEPT: Duration = Duration::from_secs(9);
/// How long the answer to a renewal is waited for before it is asked for again.
const PERIOD: Duration = Duration::from_millis(1_500);
/// How long before its expiry on the server a holder gives its lease up, at the most.
const MARGIN: Duration = Duration::from_millis(100);
/// What leaks shows: no expiry frees it.
const LEAKING: Duration = Duration::from_secs(600);
/// A request without an answer is soon sent again.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Many times what a background release takes, pauses included, and far from the expiry.
const UNTIL_FREE: Duration = Duration::from_secs(300);
const STEP: Duration = Duration::from_millis(20);
const TASKS: u64 = 8;
/// Longer than it takes until enough has happened: it only ends a hang.
const PATIENCE: Duration = Duration::from_secs(1_800);

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub granted: usize,
    pub renewed: usize,
    pub released: usize,
    /// Waits that were over, and those that ended with an error.
    pub refused: usize,
    /// Acquires and leases that were dropped midway.
    pub dropped: usize,
    /// Leases that ended because none of their renewals was answered, often enough in a row: four were not, one
    /// in 160 000, at a share of 5% of answers that never come. Two are no coincidence.
    pub unlucky: usize,
    /// Leases that ended while the machine, the server or the way to it stood still.
    pub stalled: usize,
    /// How long it took at the end until every key was free.
    pub free_after: Duration,
}

impl Tally {
    /// Whether each kind of thing has happened so often.
    pub fn has_all(&self, times: usize) -> bool {
        let all = [
            self.granted,
            self.renewed,
            self.released,
            self.refused,
            self.dropped,
        ];
        all.iter().all(|happened| *happened >= times)
    }
}

/// Works through each of these stores, as one process each, until enough has happened. Then tells `calm`, and
/// looks at the server itself.
pub async fn soak(
    clients: Vec<Arc<dyn Store>>,
    server: Arc<dyn Store>,
    enough: impl Fn(&Tally) -> bool,
    calm: impl FnOnce(),
) -> anyhow::Result<Tally> {
    let spots = ["a", "b", "c", "d"].map(|name| {
        [KEPT, LEAKING].map(|ttl| Spot {
            key: format!("{name} {ttl:?}"),
            ttl,
            section: Mutex::default(),
        })
    });
    let world = Arc::new(World {
        spots: spots.into_iter().flatten().collect(),
        tally: Mutex::default(),
        renewals: RenewalLog::default(),
        stalls: Stalls::of(server.clone()),
        losses: Mutex::default(),
    });
    let mut tasks = JoinSet::new();
    for (number, store) in (0..).zip(clients) {
        let store = world.renewals.around(store);
        let client = Arc::new(Client {
            // A look loses no answer, and needs a connection of the same pool.
            stalls: Stalls::of(store.clone()),
            leases: Leases::builder(store).call_timeout(CALL_TIMEOUT).build(),
        });
        for task in 0..TASKS {
            let (world, client) = (world.clone(), client.clone());
            let random = Rng::with_seed(number * TASKS + task);
            let work = async move { world.work(&client, random).await };
            tasks.spawn(work);
        }
    }
    let start = Instant::now();
    while !enough(&world.tally.lock()) {
        // No task ends by itself, unless with what is wrong.
        if let Some(task) = tasks.try_join_next() {
            task??;
        }
        ensure!(start.elapsed() < PATIENCE, "too little happens");
        sleep(STEP).await;
    }
    // All of it is dropped, wherever it is.
    tasks.abort_all();
    while let Some(task) = tasks.join_next().await {
        match task {
            Err(error) if error.is_cancelled() => {}
            outcome => outcome??,
        }
    }
    calm();
    let mut tally = world.tally.lock().clone();
    let losses = world.losses.lock().join("; ");
    ensure!(
        tally.unlucky <= 1,
        "too many were lost: {tally:?}; {losses}"
    );
    ensure!(tally.renewed > 0, "nothing was renewed: {tally:?}");
    tally.free_after = world.until_free(patient(server)).await?;
    Ok(tally)
}

/// What a holder knew of its lease.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub lease: LeaseId,
    /// When it came to the holder.
    pub taken: Instant,
    /// The last deadline that the holder saw.
    pub until: Instant,
}

impl Seen {
    fn of(lease: &Lease, taken: Instant) -> Self {
        Self {
            lease: lease.id(),
            taken,
            until: lease.deadline(),
        }
    }

    /// How many renewals have to be asked for in vain before the lease may be lost: one a period, from the moment
    /// at which it is due, or was heard of for the last time if that was later. The first may wait for a place
    /// until the answer to another is overdue.
    pub fn attempts(&self, renewals: &Renewals) -> usize {
        let (heard, until) = match renewals.last {
            Some((sent, answered)) => (answered, self.until.max(sent + KEPT - MARGIN)),
            None => (self.taken, self.until),
        };
        let due = until - KEPT * 2 / 3;
        let time = until.saturating_duration_since(heard.max(due) + MARGIN);
        usize::try_from(time.as_millis() / PERIOD.as_millis()).unwrap_or(usize::MAX)
    }
}

struct World {
    spots: Vec<Spot>,
    tally: Mutex<Tally>,
    renewals: RenewalLog,
    /// Of the machine and the server.
    stalls: Stalls,
    /// What is known of the leases that were lost by bad luck.
    losses: Mutex<Vec<String>>,
}

/// Who works, and on which key.
#[derive(Clone, Copy)]
struct At<'a> {
    client: &'a Client,
    spot: &'a Spot,
}

/// One process.
struct Client {
    leases: Leases,
    /// Of its way to the server: a connection that is cut has the driver open its connections anew, which takes
    /// a slow machine seconds.
    stalls: Stalls,
}

/// A key, and what those who hold it have seen of each other.
struct Spot {
    key: String,
    ttl: Duration,
    section: Mutex<Section>,
}

#[derive(Default)]
struct Section {
    /// Who is inside, and until when it counted on its lease at its last look.
    inside: Option<(LeaseId, Instant)>,
    fence: Option<Fence>,
}

impl World {
    async fn work(&self, client: &Client, mut random: Rng) -> anyhow::Result<()> {
        loop {
            let spot = &self.spots[random.usize(..self.spots.len())];
            let patience = Duration::from_millis(random.u64(..3_000));
            let stay = match random.u32(..8) {
                0 if spot.ttl == KEPT => KEPT.mul_f64(1.0 + random.f64()),
                _ => Duration::from_millis(random.u64(..300)),
            };
            let ask = client.leases.acquire(&spot.key, spot.ttl);
            let at = At { client, spot };
            match random.u32(..4) {
                0 => self.release(at, ask.wait_for(patience), stay).await?,
                1 => self.drop(at, ask.wait_for(patience), stay).await?,
                2 => self.with(at, ask.wait_for(patience), stay).await?,
                _ => match timeout(patience, self.drop(at, ask, stay)).await {
                    Ok(outcome) => outcome?,
                    Err(_) => self.tally.lock().dropped += 1,
                },
            }
        }
    }

    async fn release(&self, at: At<'_>, ask: Acquire, time: Duration) -> anyhow::Result<()> {
        let lease = ask.keep_alive().await;
        let taken = Instant::now();
        match lease {
            Ok(lease) if self.stay(at, &lease, time).await? => {
                self.tally.lock().released += 1;
                let last = Some(Seen::of(&lease, taken));
                match lease.release().await {
                    Err(Error::Lost { reason, .. }) => {
                        let lost = self.lost(at, &reason, last).await;
                        lost.context("a live lease is released")
                    }
                    // It goes on in the background.
                    _ => Ok(()),
                }
            }
            Ok(_) => Ok(()),
            Err(error) => self.refused(error),
        }
    }

    async fn drop(&self, at: At<'_>, ask: Acquire, time: Duration) -> anyhow::Result<()> {
        match ask.keep_alive().await {
            Ok(lease) => self.stay(at, &lease, time).await.map(drop),
            Err(error) => self.refused(error),
        }
    }

    async fn with(&self, at: At<'_>, ask: Acquire, time: Duration) -> anyhow::Result<()> {
        let mut last = None;
        let body = async |lease: &Lease| {
            last = Some(Seen::of(lease, Instant::now()));
            self.stay(at, lease, time).await
        };
        match ask.with(body).await {
            Ok(_) => Ok(()),
            Err(WithError::NotAcquired(error)) => self.refused(error),
            Err(WithError::Lost { reason, .. }) => self.lost(at, &reason, last).await,
            Err(WithError::Body(error)) => Err(error),
        }
    }

    /// Works under the lease for a while, alone. Says whether it was kept.
    async fn stay(&self, at: At<'_>, lease: &Lease, time: Duration) -> anyhow::Result<bool> {
        self.tally.lock().granted += 1;
        let taken = Instant::now();
        let end = taken + time;
        let mut seen = Seen::of(lease, taken);
        let _inside = at.spot.enter(lease)?;
        loop {
            tokio::select! {
                reason = lease.lost() => {
                    self.lost(at, &reason, Some(seen)).await?;
                    return Ok(false);
                }
                () = sleep(STEP) => at.spot.look(lease)?,
            }
            if lease.deadline() > seen.until {
                seen.until = lease.deadline();
                self.tally.lock().renewed += 1;
            }
            if Instant::now() >= end {
                return Ok(lease.is_live());
            }
        }
    }

    /// Nobody evicts. So a lease, of which a deadline was seen, is lost only after that: because no renewal was
    /// answered until then, or because the machine, the server or the way to it stood still.
    async fn lost(
        &self,
        at: At<'_>,
        reason: &LossReason,
        last: Option<Seen>,
    ) -> anyhow::Result<()> {
        let (now, key) = (Instant::now(), &at.spot.key);
        let passing = match reason {
            LossReason::Unreachable(error) => error.is_retryable(),
            // Heard of while its holder still counted on it.
            LossReason::TakenOver | LossReason::Closed => false,
            _ => true,
        };
        let over = last.is_none_or(|seen| now >= seen.until);
        ensure!(over && passing, "{key} was lost wrongly: {reason}");
        for stalls in [&self.stalls, &at.client.stalls] {
            // Within the life of a kept lease that ends now, for as long as costs it its renewals.
            if stalls.since(now - KEPT * 2).await >= KEPT / 3 {
                self.tally.lock().stalled += 1;
                return Ok(());
            }
        }
        let Some(seen) = last else {
            bail!("{key} was lost before anybody saw it: {reason}");
        };
        let renewals = self.renewals.of(seen.lease, now);
        let known = format!("{key} at {now:?}: {seen:?}, {renewals:?}");
        ensure!(
            renewals.in_vain.len() >= seen.attempts(&renewals),
            "lost after too few renewals in vain: {known}"
        );
        self.losses.lock().push(known);
        self.tally.lock().unlucky += 1;
        Ok(())
    }

    fn refused(&self, error: Error) -> anyhow::Result<()> {
        self.tally.lock().refused += 1;
        if error.is_retryable() {
            Ok(())
        } else {
            Err(error.into())
        }
    }

    async fn until_free(&self, leases: Leases) -> anyhow::Result<Duration> {
        let start = Instant::now();
        for spot in &self.spots {
            let state = async || leases.inspect(&spot.key).await;
            while !state().await?.is_none_or(|state| state.is_free()) {
                ensure!(start.elapsed() < UNTIL_FREE, "{} stays held", spot.key);
                sleep(STEP).await;
            }
        }
        Ok(start.elapsed())
    }
}

impl Spot {
    fn enter(&self, lease: &Lease) -> anyhow::Result<Inside<'_>> {
        let mut section = self.section.lock();
        if lease.is_live() {
            section.alone(self)?;
            let fence = Some(lease.fence());
            ensure!(section.fence < fence, "the fence of {} falls", self.key);
            section.fence = fence;
            section.inside = Some((lease.id(), lease.deadline()));
        }
        Ok(Inside(self, lease.id()))
    }

    fn look(&self, lease: &Lease) -> anyhow::Result<()> {
        let mut section = self.section.lock();
        if lease.is_live() {
            if section.inside.is_none_or(|(id, _)| id != lease.id()) {
                bail!("another was let in to {} beside a live holder", self.key);
            }
            section.inside = Some((lease.id(), lease.deadline()));
        }
        Ok(())
    }
}

impl Section {
    fn alone(&self, spot: &Spot) -> anyhow::Result<()> {
        match self.inside {
            Some((_, until)) if Instant::now() < until => {
                bail!("{} has two live holders", spot.key)
            }
            _ => Ok(()),
        }
    }
}

/// Somebody in the critical section; it is left before the lease is given back.
struct Inside<'a>(&'a Spot, LeaseId);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut section = self.0.section.lock();
        if section.inside.is_some_and(|(id, _)| id == self.1) {
            section.inside = None;
        }
    }
}
