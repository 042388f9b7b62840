//! Ordinary work: many tasks acquire, keep, release and drop leases on a few keys. Whatever the network does meanwhile,
//! each key has at most one live holder, fences rise, no lease is lost that could have been kept, and at the end every
//! key is free.

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

/// The ttl of a lease with keep-alive. It is renewed after 3 s, and again at 4.5 s, 6 s and 7.5 s if there is no
/// answer.
const KEPT: Duration = Duration::from_secs(9);
/// How long a renewal waits for its answer before it is repeated.
const PERIOD: Duration = Duration::from_millis(1_500);
/// How long before its expiry on the server a holder gives its lease up, at most.
const MARGIN: Duration = Duration::from_millis(100);
/// A ttl so long that a leaked lease shows: it is not freed by its expiry.
const LEAKING: Duration = Duration::from_secs(600);
/// With so short a time limit a request without an answer is soon sent again.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Many times longer than a background release takes, with its pauses, and much shorter than the ttl.
const UNTIL_FREE: Duration = Duration::from_secs(300);
const STEP: Duration = Duration::from_millis(20);
const TASKS: u64 = 8;
/// Longer than it takes until enough has happened. It only ends a hang.
const PATIENCE: Duration = Duration::from_secs(1_800);

/// How often each kind of thing has happened.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub granted: usize,
    pub renewed: usize,
    pub released: usize,
    /// Acquires whose time limit was over, and acquires that ended with an error.
    pub refused: usize,
    /// Acquires and leases that were dropped midway.
    pub dropped: usize,
    /// Leases that ended because none of their renewals was answered, and enough were sent in a row: four renewals
    /// without an answer are one case in 160 000, if 5% of the answers never come. Two such leases are no coincidence.
    pub unlucky: usize,
    /// Leases that ended while the machine, the server or the way to it stood still.
    pub stalled: usize,
    /// How long it took at the end until every key was free.
    pub free_after: Duration,
}

impl Tally {
    /// Whether each kind of thing has happened this often.
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

/// Works through each of these stores, each as one process, until enough has happened. Then calls `calm`, and checks
/// the keys on the server itself.
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
            // A read loses no answer, and needs a connection of the same pool.
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
        // A task ends by itself only with an error.
        if let Some(task) = tasks.try_join_next() {
            task??;
        }
        ensure!(start.elapsed() < PATIENCE, "too little happens");
        sleep(STEP).await;
    }
    // All work is dropped, wherever it is.
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
    /// When the holder got the lease.
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

    /// How many renewals have to be sent in vain before the lease may be lost: one a period, from the moment at which a
    /// renewal is due, or at which the last answer came if that was later. The first one may wait for a place until the
    /// answer to another is overdue.
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
    /// The stalls of the machine and the server.
    stalls: Stalls,
    /// What is known of the leases that were lost by bad luck.
    losses: Mutex<Vec<String>>,
}

/// The client that works, and its key.
#[derive(Clone, Copy)]
struct At<'a> {
    client: &'a Client,
    spot: &'a Spot,
}

/// A process.
struct Client {
    leases: Leases,
    /// The stalls of its way to the server: after a cut the driver opens its connections anew, which takes seconds on a
    /// slow machine.
    stalls: Stalls,
}

/// A key, and what its holders have seen of each other.
struct Spot {
    key: String,
    ttl: Duration,
    section: Mutex<Section>,
}

#[derive(Default)]
struct Section {
    /// The lease that is in the critical section, and the deadline that it saw last.
    inside: Option<(LeaseId, Instant)>,
    fence: Option<Fence>,
}

impl World {
    async fn work(&self, client: &Client, mut random: Rng) -> anyhow::Result<()> {
        loop {
            let spot = &self.spots[random.usize(..self.spots.len())];
            let patience = Duration::from_millis(random.u64(..3_000));
            let stay = match random.u32(..4) {
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
                    // The release goes on in the background.
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

    /// Works under the lease for a while, and checks that no other holder does. Returns whether the lease was kept.
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

    /// Nobody evicts. So a lease may be lost only after the last deadline that was seen: because no renewal was
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
            // The holder heard of this while it still counted on its lease.
            LossReason::TakenOver | LossReason::Closed => false,
            _ => true,
        };
        let over = last.is_none_or(|seen| now >= seen.until);
        ensure!(over && passing, "{key} was lost wrongly: {reason}");
        for stalls in [&self.stalls, &at.client.stalls] {
            // This is within the life of a lease with keep-alive that ends now, and long enough to cost it its
            // renewals.
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

/// A lease in the critical section. It leaves the section before it is released.
struct Inside<'a>(&'a Spot, LeaseId);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut section = self.0.section.lock();
        if section.inside.is_some_and(|(id, _)| id == self.1) {
            section.inside = None;
        }
    }
}
