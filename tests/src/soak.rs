//! Ordinary work: many tasks take, keep, release and drop leases on a few keys. Whatever the
//! network does meanwhile, a live holder is alone, fences rise, no lease is lost that could have been
//! kept, and at the end every key is free.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail, ensure};
use fastrand::Rng;
use leasehold::{Acquire, Error, Fence, Lease, LeaseId, Leases, LossReason, Store, WithError};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{patient, stalls::Stalls};

/// A kept lease is renewed after 3 s, and without an answer again at 4.5 s, 6 s and 7.5 s.
const KEPT: Duration = Duration::from_secs(9);
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
    /// Leases of which four renewals in a row were not answered: one in 160 000, at a share of 5% of
    /// answers that never come. Two are no coincidence.
    pub unlucky: usize,
    /// Leases that ended while the machine or the server stood still.
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
        stalls: Stalls::of(server.clone()),
    });
    let mut tasks = JoinSet::new();
    for (number, store) in (0..).zip(clients) {
        let leases = Leases::builder(store).call_timeout(CALL_TIMEOUT).build();
        for task in 0..TASKS {
            let (world, leases) = (world.clone(), leases.clone());
            let random = Rng::with_seed(number * TASKS + task);
            let work = async move { world.work(&leases, random).await };
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
    ensure!(tally.unlucky <= 1, "too many were lost: {tally:?}");
    ensure!(tally.renewed > 0, "nothing was renewed: {tally:?}");
    tally.free_after = world.until_free(patient(server)).await?;
    Ok(tally)
}

struct World {
    spots: Vec<Spot>,
    tally: Mutex<Tally>,
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
    async fn work(&self, leases: &Leases, mut random: Rng) -> anyhow::Result<()> {
        loop {
            let spot = &self.spots[random.usize(..self.spots.len())];
            let patience = Duration::from_millis(random.u64(..3_000));
            let stay = match random.u32(..8) {
                0 if spot.ttl == KEPT => KEPT.mul_f64(1.0 + random.f64()),
                _ => Duration::from_millis(random.u64(..300)),
            };
            let ask = leases.acquire(&spot.key, spot.ttl);
            match random.u32(..4) {
                0 => self.release(spot, ask.wait_for(patience), stay).await?,
                1 => self.drop(spot, ask.wait_for(patience), stay).await?,
                2 => self.with(spot, ask.wait_for(patience), stay).await?,
                _ => match timeout(patience, self.drop(spot, ask, stay)).await {
                    Ok(outcome) => outcome?,
                    Err(_) => self.tally.lock().dropped += 1,
                },
            }
        }
    }

    async fn release(&self, spot: &Spot, ask: Acquire, time: Duration) -> anyhow::Result<()> {
        match ask.keep_alive().await {
            Ok(lease) if self.stay(spot, &lease, time).await? => {
                self.tally.lock().released += 1;
                let until = lease.deadline();
                match lease.release().await {
                    Err(Error::Lost { reason, .. }) => {
                        let lost = self.lost(spot, &reason, Some(until)).await;
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

    async fn drop(&self, spot: &Spot, ask: Acquire, time: Duration) -> anyhow::Result<()> {
        match ask.keep_alive().await {
            Ok(lease) => self.stay(spot, &lease, time).await.map(drop),
            Err(error) => self.refused(error),
        }
    }

    async fn with(&self, spot: &Spot, ask: Acquire, time: Duration) -> anyhow::Result<()> {
        let mut until = None;
        let body = async |lease: &Lease| {
            until = Some(lease.deadline());
            self.stay(spot, lease, time).await
        };
        match ask.with(body).await {
            Ok(_) => Ok(()),
            Err(WithError::NotAcquired(error)) => self.refused(error),
            Err(WithError::Lost { reason, .. }) => self.lost(spot, &reason, until).await,
            Err(WithError::Body(error)) => Err(error),
        }
    }

    /// Works under the lease for a while, alone. Says whether it was kept.
    async fn stay(&self, spot: &Spot, lease: &Lease, time: Duration) -> anyhow::Result<bool> {
        self.tally.lock().granted += 1;
        let end = Instant::now() + time;
        let mut until = lease.deadline();
        let _inside = spot.enter(lease)?;
        loop {
            tokio::select! {
                reason = lease.lost() => {
                    self.lost(spot, &reason, Some(until)).await?;
                    return Ok(false);
                }
                () = sleep(STEP) => spot.look(lease)?,
            }
            if lease.deadline() > until {
                until = lease.deadline();
                self.tally.lock().renewed += 1;
            }
            if Instant::now() >= end {
                return Ok(lease.is_live());
            }
        }
    }

    /// Nobody evicts. So a lease is lost only after its deadline: because no renewal was answered until then,
    /// or because the machine or the server stood still.
    async fn lost(
        &self,
        spot: &Spot,
        reason: &LossReason,
        until: Option<Instant>,
    ) -> anyhow::Result<()> {
        let over = until.is_none_or(|until| Instant::now() >= until);
        let passing = match reason {
            LossReason::Unreachable(error) => error.is_retryable(),
            // Heard of while its holder still counted on it.
            LossReason::TakenOver | LossReason::Closed => false,
            _ => true,
        };
        ensure!(over && passing, "{} was lost wrongly: {reason}", spot.key);
        let stalled = self.stalled().await;
        let mut tally = self.tally.lock();
        match stalled {
            true => tally.stalled += 1,
            false => tally.unlucky += 1,
        }
        Ok(())
    }

    /// Whether the machine or the server stood still, within the life of a kept lease that ends now, for as long
    /// as costs it its renewals.
    async fn stalled(&self) -> bool {
        self.stalls.since(Instant::now() - KEPT * 2).await >= KEPT / 3
    }

    fn refused(&self, error: Error) -> anyhow::Result<()> {
        self.tally.lock().refused += 1;
        match error.is_retryable() {
            true => Ok(()),
            false => Err(error.into()),
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
