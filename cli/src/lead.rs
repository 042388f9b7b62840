//! `lead`: keeps a command running on one host, under a lease, and starts it again when it ends.
//!
//! This is not [`Leader`](leasehold::jobs::Leader), which drops its work at once when the lease is lost. Here the
//! command has a grace time, and no other command may start on this host before it has ended.

use std::time::Duration;

use leasehold::{Error, Lease, Leases};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, interval, sleep},
};

use super::{
    args::Lead,
    clock::ClockSamples,
    exit::{Code, Failure},
    out, process_tree,
    run::{self, CommandEnd, ReadySupervisor},
    signals::Signals,
    terms::Terms,
    text,
};

/// The pause after the first end of the command, and after an error of the store, before the random part is subtracted.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause. A command that ran for at least this long did its work, so the next pause is the shortest again.
const LONGEST: Duration = Duration::from_secs(60);

pub async fn lead(lead: Lead, leases: &Leases, margin: Duration) -> Result<Code, Failure> {
    let terms = Terms::new(lead.ttl, lead.grace, margin).map_err(Failure::Usage)?;
    let mut signals = Signals::new()?;
    // If a process is started with SIGCHLD ignored, the kernel drops the status of each child that ends.
    let _children = signal(SignalKind::child())?;
    // If the supervisor is killed, its children become children of this process, which can then end them.
    process_tree::become_subreaper();
    let mut ends = 0;
    loop {
        let supervisor = ReadySupervisor::new(&lead.command, &terms, None)?;
        let mut samples = ClockSamples::new();
        let campaign = campaign(&lead, leases, &terms, &mut samples);
        let lease = tokio::select! {
            lease = campaign => lease?,
            signal = signals.end() => return Ok(signal.into()),
        };
        let (key, began) = (text::name(&lead.key), Instant::now());
        out::say(&format!(
            "{key} is led from here, with fence {}",
            lease.fence()
        ));
        let ended = match supervisor.start(&lease, None, samples).await {
            Ok(supervisor) => supervisor.wait(&lease, &mut signals).await,
            Err(error) => {
                let _ = run::release(lease).await;
                return Err(error.into());
            }
        };
        let CommandEnd {
            code,
            stopped,
            asked_to_end,
            has_survivors,
        } = ended;
        let is_asked_to_end = tokio::select! {
            released = run::release(lease) => {
                if let Err(error) = released && !stopped {
                    out::say(&format!("{key} could not be released, its ttl will: {error}"));
                }
                asked_to_end.is_some()
            }
            _ = signals.end() => true,
        };
        if is_asked_to_end {
            return Ok(code);
        }
        // They are children of this process now.
        if has_survivors {
            out::say("this host campaigns again when all that the command has started has ended");
            tokio::select! {
                () = all_have_ended() => {}
                signal = signals.end() => return Ok(signal.into()),
            }
        }
        if began.elapsed() >= LONGEST {
            ends = 0;
        }
        // After a lost lease this host campaigns at once: nothing is wrong with the command.
        if !stopped {
            let pause = pause(ends, fastrand::f64());
            ends = ends.saturating_add(1);
            let (code, left) = (i32::from(code), text::short(pause));
            out::say(&format!(
                "the command has ended with {code}; this host campaigns again in {left}"
            ));
            tokio::select! {
                () = sleep(pause) => {}
                signal = signals.end() => return Ok(signal.into()),
            }
        }
    }
}

async fn all_have_ended() {
    let mut ticks = interval(FIRST);
    while !process_tree::reap_all(None) {
        ticks.tick().await;
    }
}

/// Waits until this host leads, however long the store does not answer.
async fn campaign(
    lead: &Lead,
    leases: &Leases,
    terms: &Terms,
    samples: &mut ClockSamples,
) -> Result<Lease, Error> {
    let (mut ticks, mut failures) = (interval(terms.check_interval()), 0);
    loop {
        let mut acquire = Box::pin(acquire(lead, leases));
        let error = loop {
            tokio::select! {
                lease = &mut acquire => match lease {
                    Err(error) if error.is_retryable() => break error,
                    lease => return lease,
                },
                _ = ticks.tick() => samples.sample(),
            }
        };
        out::say(&format!(
            "no campaign for {} now: {error}",
            text::name(&lead.key)
        ));
        sleep(pause(failures, fastrand::f64())).await;
        failures += 1;
    }
}

async fn acquire(lead: &Lead, leases: &Leases) -> Result<Lease, Error> {
    let mut acquire = leases.acquire(&lead.key, lead.ttl).keep_alive();
    if let Some(owner) = &lead.owner {
        acquire = acquire.owner(&**owner);
    }
    if let Some(note) = &lead.note {
        acquire = acquire.note(&**note);
    }
    acquire.await
}

/// The pause after this many others in a row. It doubles up to the longest pause. A random part, from `chance` between
/// 0 and 1, shortens it to between a half and the whole.
fn pause(pauses: u32, chance: f64) -> Duration {
    let doubled = FIRST.saturating_mul(2u32.saturating_pow(pauses));
    doubled.min(LONGEST).mul_f64(0.5 + 0.5 * chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_the_longest() {
        let seconds = |pauses| pause(pauses, 1.0).as_secs();
        assert_eq!([0, 1, 2, 5, 6, 40].map(seconds), [1, 2, 4, 32, 60, 60]);
        assert_eq!(pause(0, 0.0), FIRST / 2);
    }
}
