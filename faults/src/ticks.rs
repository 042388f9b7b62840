//! One task of each client: a job that must be done once per tick, for which all clients race.

use std::time::Duration;

use anyhow::Result;
use leasehold::{
    Error,
    jobs::{Done, OnceAttempt, OnceLease},
};
use tokio::time::sleep;

use crate::{
    history::{Claim, Event, Time},
    work::{LOOK, OFTEN, Worker},
};

/// The key of the job.
const KEY: &str = "job";
/// The time between two ticks, by the clock that all clients share.
const TICK: Duration = Duration::from_millis(700);
/// One in this many runs lasts about as long as the ttl, or longer.
const LASTS_LONG: u32 = 10;

/// The tick at this time.
fn tick_at(time: Time) -> i64 {
    (time / TICK.as_micros() as Time) as i64
}

impl Worker {
    /// Asks for a tick, and does it if it is granted.
    pub(crate) async fn ask_for_tick(&mut self) -> Result<()> {
        let sent = self.recorder.clock.now();
        let tick = tick_at(sent) - self.ticks_ago();
        let mut job = self.leases.once(KEY, tick).ttl(self.ttl);
        let waits = self.random.bool();
        if waits {
            job = job.wait_for(Duration::from_millis(self.random.u64(..2_000)));
        }
        match job.acquire().await {
            Ok(OnceAttempt::Acquired(lease)) => self.run(tick, sent, lease).await?,
            Ok(OnceAttempt::Done(done) | OnceAttempt::Superseded { done, .. }) => {
                self.told_done(tick, &done, sent).await
            }
            Ok(OnceAttempt::Held(_)) => {
                self.recorder.saw(Event::Operations(1));
                sleep(LOOK * 10).await;
            }
            Err(error) => self.pass_over(error).await?,
        }
        Ok(())
    }

    /// How many ticks this client is late. A tick that is done remains done, however late the client is.
    fn ticks_ago(&mut self) -> i64 {
        match self.random.u32(..8) {
            0 => self.random.i64(1..4),
            _ => 0,
        }
    }

    async fn told_done(&mut self, asked: i64, done: &Done, sent: Time) {
        let got = self.recorder.clock.now();
        self.recorder.saw(Event::ToldDone {
            asked,
            done: done.tick.number(),
            lease: done.lease.to_string(),
            sent,
            got,
        });
        if self.random.u32(..4) == 0 {
            // Sometimes the client asks again almost at once, and not at the next tick.
            sleep(LOOK * 10).await;
        } else {
            let since = got % TICK.as_micros() as Time;
            sleep(TICK - Duration::from_micros(since)).await;
        }
    }

    async fn run(&mut self, tick: i64, sent: Time, lease: OnceLease) -> Result<()> {
        let clock = self.recorder.clock;
        let (fence, id) = (lease.fence().get(), lease.id().to_string());
        let got = clock.now();
        self.recorder.saw(Event::Granted {
            key: KEY.to_owned(),
            lease: id.clone(),
            claim: Claim::All,
            fence,
            sent,
            got,
        });
        // A lease that is live when it is checked was live before the check.
        if lease.is_live() {
            self.recorder.saw(Event::Began {
                tick,
                lease: id.clone(),
                at: got,
            });
        }
        let stays = if self.random.u32(..LASTS_LONG) == 0 {
            self.ttl.mul_f64(0.8 + 0.6 * self.random.f64())
        } else {
            Duration::from_millis(self.random.u64(..200))
        };
        let end = got + stays.as_micros() as Time;
        loop {
            let last = clock.now();
            if !lease.is_live() {
                // A slow run, which ends when another holder has the key.
                sleep(Duration::from_millis(self.random.u64(..1_000))).await;
                break;
            }
            let lease = id.clone();
            self.recorder.saw(Event::Ended { lease, fence, last });
            if last >= end {
                break;
            }
            sleep(OFTEN.min(Duration::from_micros(end - last))).await;
        }
        let fails = match self.random.u32(..8) {
            0 => {
                drop(lease);
                return Ok(());
            }
            number => number == 1,
        };
        let ended = if fails {
            lease.release().await
        } else {
            lease.complete().await
        };
        let got = clock.now();
        match ended {
            Ok(()) => {
                if !fails {
                    self.recorder.saw(Event::TickDone { tick, got });
                }
                let key = KEY.to_owned();
                self.recorder.saw(Event::Released { key, fence, got });
            }
            Err(Error::Lost { .. }) => self.recorder.saw(Event::Operations(1)),
            // The release continues in the background.
            Err(error) => anyhow::ensure!(error.is_retryable(), error),
        }
        Ok(())
    }
}
