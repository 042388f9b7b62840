//! The work of a client: it takes leases of every kind, works under them, and records what it sees.

use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use leasehold::{Attempt, Error, Lease, Leases, PermitAttempt};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{
    documents::Documents,
    history::{Claim, Event, Recorder, Time},
    ledger::Account,
};

pub const TTL: Duration = Duration::from_secs(3);
/// How long a request waits for its answer. It is short, so that a request is soon sent again.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// The key that every client always waits for.
pub const CONTENDED: &str = "contended";
/// The key for which several tasks of every client always wait, for an exclusive or a shared lease.
pub const QUEUED: &str = "queued";
/// Those keys with exclusive leases that all clients use, and that may stay with one of them.
const STICKY: [&str; 6] = [
    "alone-0", "alone-1", "alone-2", "alone-3", "alone-4", "alone-5",
];
/// The number of keys that have only exclusive leases, only shared leases, or only permits.
const ALONE: usize = 24;
const SHARED: usize = 2;
const PERMITS: usize = 2;
pub const CAPACITY: u32 = 3;
/// A number of readers that is never reached.
pub const READERS: u32 = 1_000;
/// The pause between two checks of a lease.
pub(crate) const LOOK: Duration = Duration::from_millis(2);
/// The limiters of both kinds.
pub const SMOOTH: &str = "smooth";
const FIXED: &str = "fixed";
pub const LIMIT: u32 = 20;
pub const WINDOW: Duration = Duration::from_secs(1);
pub const BURST: u32 = 5;
/// How often a holder records that it relies on its lease.
pub(crate) const OFTEN: Duration = Duration::from_millis(50);

/// How long leases last, and how long an answer may take.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pace {
    pub ttl: Duration,
    pub call_timeout: Duration,
}

impl Pace {
    pub const FAST: Self = Self {
        ttl: TTL,
        call_timeout: CALL_TIMEOUT,
    };

    /// The pace for servers whose slowest answer took this long. If requests were given up before their answers could
    /// arrive, nothing would happen.
    pub fn of(slowest: Duration) -> Self {
        let call_timeout = CALL_TIMEOUT.max(4 * slowest);
        Self {
            ttl: 3 * call_timeout,
            call_timeout,
        }
    }
}

pub struct Worker {
    pub leases: Leases,
    pub recorder: Recorder,
    pub account: Account,
    pub documents: Documents,
    pub random: Rng,
    pub role: Role,
    /// The number of its client. A client that was killed has the number of the one before it.
    pub client: usize,
    pub ttl: Duration,
    /// One in this many stays lasts about as long as the ttl, or longer.
    pub dawdles: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes leases of every kind.
    Takes,
    /// Waits only for [`CONTENDED`].
    Contends,
    /// Waits for [`QUEUED`].
    Queues,
    /// Asks the limiters for permits.
    Calls,
    /// Does a job once per tick.
    Ticks,
    /// Writes documents, with and without a guard.
    Writes,
    /// Uses keys that mostly stay with this client.
    Keeps,
    /// Uses keys that mostly stay with other clients.
    Visits,
}

impl Role {
    /// The role of the worker with this number.
    pub fn of(number: u64) -> Self {
        match number {
            0 => Self::Contends,
            1 => Self::Calls,
            2 | 3 => Self::Queues,
            4 => Self::Ticks,
            5 => Self::Writes,
            6 | 7 => Self::Keeps,
            8 => Self::Visits,
            _ => Self::Takes,
        }
    }
}

impl Worker {
    /// Works until it is dropped.
    pub async fn work(mut self) -> Result<()> {
        while self.role == Role::Calls {
            self.call().await?;
        }
        while self.role == Role::Ticks {
            self.ask_for_tick().await?;
        }
        while self.role == Role::Writes {
            self.write_documents().await?;
        }
        while self.role == Role::Keeps {
            self.use_kept().await?;
        }
        while self.role == Role::Visits {
            self.visit().await?;
        }
        loop {
            let (key, claim) = self.choose();
            let sent = self.recorder.clock.now();
            let asked = self.ask(&key, claim).await;
            self.hold_if_granted(&key, claim, sent, asked).await?;
        }
    }

    /// Works under the lease, if the request was granted.
    pub(crate) async fn hold_if_granted(
        &mut self,
        key: &str,
        claim: Claim,
        sent: Time,
        asked: Result<Attempt, Error>,
    ) -> Result<()> {
        match asked {
            Ok(Attempt::Acquired(lease)) => self.hold(key, claim, sent, lease).await?,
            // What the store has told of the holders was recorded there. This may be an earlier answer.
            Ok(Attempt::Held(_)) | Err(Error::WaitTimedOut { .. }) => {
                self.recorder.saw(Event::Operations(1));
            }
            Err(error) => self.pass_over(error).await?,
        }
        Ok(())
    }

    async fn call(&mut self) -> Result<()> {
        let name = *self.random.choice(&[SMOOTH, FIXED]).unwrap();
        let mut limiter = self.leases.limiter(name, LIMIT, WINDOW);
        if name == SMOOTH {
            limiter = limiter.smooth(BURST);
        }
        let sent = self.recorder.clock.now();
        // The time of a single request says more than the time of a wait.
        let permit = if self.random.bool() {
            limiter.try_permit().await
        } else {
            limiter.permit().await.map(PermitAttempt::Granted)
        };
        let got = self.recorder.clock.now();
        match permit {
            Ok(PermitAttempt::Granted(_)) => self.recorder.saw(Event::Permit {
                limiter: name.to_owned(),
                sent,
                got,
            }),
            Ok(PermitAttempt::Full { .. }) => sleep(LOOK * 10).await,
            Err(error) => self.pass_over(error).await?,
        }
        Ok(())
    }

    /// Passes over an error that is not a fault of the client, so that the client tries again.
    pub(crate) async fn pass_over(&mut self, error: Error) -> Result<()> {
        anyhow::ensure!(error.is_retryable(), error);
        sleep(Duration::from_millis(self.random.u64(10..100))).await;
        Ok(())
    }

    fn choose(&mut self) -> (String, Claim) {
        let random = &mut self.random;
        match self.role {
            Role::Contends => return (CONTENDED.to_owned(), Claim::All),
            Role::Queues => return (QUEUED.to_owned(), reads_unless_one_in(2, random)),
            _ => {}
        }
        match random.u32(..10) {
            0 | 1 => {
                let claim = reads_unless_one_in(4, random);
                (format!("shared-{}", random.usize(..SHARED)), claim)
            }
            2 | 3 => {
                let claim = Claim::OneOf(CAPACITY);
                (format!("permits-{}", random.usize(..PERMITS)), claim)
            }
            _ => (format!("alone-{}", random.usize(..ALONE)), Claim::All),
        }
    }

    async fn ask(&mut self, key: &str, claim: Claim) -> Result<Attempt, Error> {
        let keeps = self.random.bool();
        let stays = STICKY.contains(&key) && self.random.bool();
        let idle = if stays { self.idle() } else { Duration::ZERO };
        let is_one_request = match self.role {
            Role::Contends => false,
            // A request that does not wait must not come before waiters either.
            Role::Queues => self.random.u32(..8) == 0,
            _ => self.random.bool(),
        };
        if is_one_request {
            // The time of a single request says more than the time of a wait.
            let mut ask = self.leases.try_acquire(key, self.ttl);
            match claim {
                Claim::All => {}
                Claim::OneOf(READERS) => ask = ask.shared(),
                Claim::OneOf(capacity) => ask = ask.permits(1, capacity),
            }
            ask = ask.sticky(idle);
            return if keeps {
                ask.keep_alive().await
            } else {
                ask.await
            };
        }
        let mut ask = self.leases.acquire(key, self.ttl);
        match claim {
            Claim::All => {}
            Claim::OneOf(READERS) => ask = ask.shared(),
            Claim::OneOf(capacity) => ask = ask.permits(1, capacity),
        }
        ask = ask.sticky(idle);
        if keeps {
            ask = ask.keep_alive();
        }
        let patience = match self.role {
            Role::Contends => Duration::from_secs(60),
            _ => Duration::from_millis(self.random.u64(..2_000)),
        };
        ask.wait_for(patience).await.map(Attempt::Acquired)
    }

    async fn hold(&mut self, key: &str, claim: Claim, sent: Time, lease: Lease) -> Result<()> {
        let clock = self.recorder.clock;
        let (fence, id) = (lease.fence().get(), lease.id().to_string());
        let got = clock.now();
        self.recorder.saw(Event::Granted {
            key: key.to_owned(),
            lease: id.clone(),
            claim,
            fence,
            sent,
            got,
        });
        let dawdles = match self.role {
            // A key that is always waited for shows how soon it is granted again.
            Role::Contends | Role::Queues => self.random.u32(..self.dawdles * 5) == 0,
            _ => self.random.u32(..self.dawdles) == 0,
        };
        let stays = if dawdles {
            self.ttl.mul_f64(0.8 + 0.6 * self.random.f64())
        } else {
            Duration::from_millis(self.random.u64(..8))
        };
        let read = match claim {
            Claim::All => self.account.read(key, fence).await?,
            Claim::OneOf(_) => None,
        };
        if claim == Claim::All && read.is_none() {
            self.refused(key, &lease);
        }
        let mut told = got;
        loop {
            // A lease that is live when it is checked was live before the check.
            let now = clock.now();
            if !lease.is_live() {
                break;
            }
            let ends = now - got >= stays.as_micros() as Time;
            // This is recorded regularly, so that it is also known of a client that is killed.
            if ends || now - told > OFTEN.as_micros() as Time {
                told = now;
                self.recorder.saw(Event::Ended {
                    lease: id.clone(),
                    fence,
                    last: now,
                });
            }
            if ends {
                if let Some(number) = read {
                    if dawdles && self.random.bool() {
                        // A pause between the check of the lease and the write.
                        sleep(self.ttl.mul_f64(self.random.f64())).await;
                    }
                    if !self.account.write(key, fence, number + 1).await? {
                        self.refused(key, &lease);
                    }
                    let last = clock.now();
                    if lease.is_live() {
                        let lease = id.clone();
                        self.recorder.saw(Event::Ended { lease, fence, last });
                    }
                }
                break;
            }
            sleep(LOOK).await;
        }
        self.end(key, lease).await
    }

    /// Releases the lease, or drops it.
    pub(crate) async fn end(&mut self, key: &str, lease: Lease) -> Result<()> {
        if !lease.is_live() {
            // A slow holder, which releases its lease when another holder has the key.
            sleep(Duration::from_millis(self.random.u64(..1_000))).await;
        }
        if self.random.u32(..3) == 0 {
            drop(lease);
            return Ok(());
        }
        let fence = lease.fence().get();
        match lease.release().await {
            Ok(()) => self.recorder.saw(Event::Released {
                key: key.to_owned(),
                fence,
                got: self.recorder.clock.now(),
            }),
            Err(Error::Lost { .. }) => self.recorder.saw(Event::Operations(1)),
            // The release continues in the background.
            Err(error) => anyhow::ensure!(error.is_retryable(), error),
        }
        Ok(())
    }

    /// Records that the ledger has refused a fence. That is right, unless the holder still has its lease.
    fn refused(&self, key: &str, lease: &Lease) {
        if lease.is_live() {
            self.recorder.saw(Event::Refused {
                key: key.to_owned(),
                fence: lease.fence().get(),
            });
        }
    }
}

/// The claim of a reader. One in this many asks to write.
fn reads_unless_one_in(many: u32, random: &mut Rng) -> Claim {
    match random.u32(..many) {
        0 => Claim::All,
        _ => Claim::OneOf(READERS),
    }
}
