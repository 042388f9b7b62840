//! The tick that `run` is to do, and the lease for it.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use leasehold::{
    Attempt, Error, Lease, Leases,
    jobs::{Done, OnceAttempt, OnceLease, RunOnce, Tick, TickKind},
};

use super::{args::Run, out, text};

/// How far ahead of this host's clock a date or a time may be. Local dates are at most 14 hours ahead of UTC.
const FARTHEST: TimeDelta = TimeDelta::days(2);

/// How far a clock may be ahead while that is nothing to tell.
const TOLERANCE: TimeDelta = TimeDelta::minutes(1);

/// Reads the value of `--tick`. The error is a message for people.
pub fn parse(text: &str) -> Result<Tick, String> {
    let tick = text.parse().map_err(|error: Error| error.to_string())?;
    check(tick, Utc::now())?;
    Ok(tick)
}

/// Refuses a date or a time that is far ahead of `now`. It is likely a mistake, and once it is done, no tick before it
/// runs.
fn check(tick: Tick, now: DateTime<Utc>) -> Result<(), String> {
    let latest = now + FARTHEST;
    let is_too_late = match tick.kind() {
        TickKind::Time => tick > Tick::from(latest),
        TickKind::Date => tick > Tick::from(latest.date_naive()),
        _ => false,
    };
    if is_too_late {
        let now = now.to_rfc3339_opts(SecondsFormat::Secs, true);
        return Err(format!(
            "{tick} is more than two days ahead of this host's clock ({now}), and once it is done, no earlier tick \
             runs: correct the tick or the clock, or use a number such as 20261124 if the tick has to be ahead"
        ));
    }
    Ok(())
}

/// The lease under which a command runs.
pub enum RunLease {
    Plain(Lease),
    /// The command does a tick under this lease.
    Once(OnceLease),
}

impl RunLease {
    pub fn lease(&self) -> &Lease {
        match self {
            Self::Plain(lease) => lease,
            Self::Once(lease) => lease,
        }
    }

    /// The tick to do, if any.
    pub fn tick(&self) -> Option<Tick> {
        match self {
            Self::Plain(_) => None,
            Self::Once(lease) => Some(lease.tick()),
        }
    }

    /// Releases the lease, and marks its tick as done if `is_done`.
    pub async fn end(self, is_done: bool) -> Result<(), Error> {
        match self {
            Self::Plain(lease) => lease.release().await,
            Self::Once(lease) if is_done => lease.complete().await,
            Self::Once(lease) => lease.release().await,
        }
    }
}

/// Asks for the lease of the tick; `None` if the command has no tick.
pub async fn acquire(run: &Run, leases: &Leases) -> Option<Result<OnceAttempt, Error>> {
    let tick = match (run.tick, run.every) {
        (Some(tick), _) => Ok(Ok(tick)),
        (None, Some(every)) => current(run, leases, every).await,
        (None, None) => return None,
    };
    Some(match tick {
        Ok(Ok(tick)) => once(run, leases, tick).acquire().await,
        Ok(Err(held)) => Ok(held),
        Err(error) => Err(error),
    })
}

fn once(run: &Run, leases: &Leases, tick: Tick) -> RunOnce {
    let once = leases.once(&run.key, tick).ttl(run.ttl);
    let mut once = once.wait_for(run.lease.wait);
    if let Some(time) = run.kept_for {
        once = once.kept_for(time);
    }
    if let Some(time) = run.max_hold {
        once = once.max_hold(time);
    }
    if let Some(owner) = &run.lease.owner {
        once = once.owner(&**owner);
    }
    if let Some(note) = &run.lease.note {
        once = once.note(&**note);
    }
    once
}

/// The tick that has begun last, on the server's clock; or an answer that the key is held.
///
/// The answer about a key contains the server's time. A key that was never locked has no answer, so a short lease is
/// acquired to learn the time.
async fn current(
    run: &Run,
    leases: &Leases,
    every: Duration,
) -> Result<Result<Tick, OnceAttempt>, Error> {
    let (now, done) = match leases.inspect(&run.key).await? {
        Some(state) => (state.now, state.done),
        None => match leases.try_acquire(&run.key, run.ttl).await? {
            Attempt::Acquired(lease) => {
                let now = lease.acquired_at();
                lease.release().await?;
                (now, None)
            }
            // Another host has locked the key meanwhile, so now a document contains the time.
            Attempt::Held(held) => match leases.inspect(&run.key).await? {
                Some(state) => (state.now, state.done),
                None => return Ok(Err(OnceAttempt::Held(held))),
            },
        },
    };
    let tick = begun_last(now, every);
    if let Some(note) = from_a_clock_ahead(&run.key, done.as_ref(), tick, now, Utc::now()) {
        out::say(&note);
    }
    Ok(Ok(tick))
}

/// What to tell if the ticks go by a clock that is ahead, or by one that was: then the newest tick that is done has not
/// begun yet, and nothing runs until it has. `now` is the time of the store, `here` that of this host.
fn from_a_clock_ahead(
    key: &str,
    done: Option<&Done>,
    tick: Tick,
    now: DateTime<Utc>,
    here: DateTime<Utc>,
) -> Option<String> {
    let key = text::name(key);
    if now - here > TOLERANCE {
        return Some(format!(
            "the clock of the store is {} ahead of this host's, and --every goes by it: correct the one that is wrong; \
             if the store's goes back, nothing runs before the newest tick of {key} that is done; to run earlier, use \
             another key",
            text::short((now - here).to_std().unwrap_or_default())
        ));
    }
    let done = done?.tick;
    let is_ahead =
        done.kind() == TickKind::Time && done > Tick::from(now + TOLERANCE) && done > tick;
    is_ahead.then(|| {
        format!(
            "the newest tick of {key} that is done, {done}, has not begun yet: the server's clock was ahead when it was \
             done, and nothing runs before that time; to run earlier, use another key"
        )
    })
}

fn begun_last(now: DateTime<Utc>, every: Duration) -> Tick {
    let every = i64::try_from(every.as_millis()).unwrap_or(i64::MAX).max(1);
    let now = now.timestamp_millis();
    Tick::stored(TickKind::Time, now - now.rem_euclid(every))
}

#[cfg(test)]
mod tests {
    use leasehold::store::LeaseId;

    use super::*;

    #[test]
    fn only_dates_and_times_can_be_too_far_ahead() {
        let now = "2026-11-24T20:00:00Z".parse().unwrap();
        let check = |tick: &str| check(tick.parse().unwrap(), now);
        // West of UTC the date is a day behind, east of it a day ahead.
        for tick in [
            "2026-11-23",
            "2026-11-25",
            "2026-11-26",
            "2026-11-26T20:00:00Z",
            "90361124",
            "9036.11.24",
        ] {
            assert_eq!(check(tick), Ok(()), "{tick}");
        }
        for tick in ["2026-11-27", "2026-11-26T20:00:01Z", "2036-11-24"] {
            let refused = check(tick).unwrap_err();
            assert!(refused.starts_with(tick), "{refused}");
        }
    }

    #[test]
    fn a_clock_that_is_or_was_ahead_is_told() {
        let at = |time: &str| time.parse::<DateTime<Utc>>().unwrap();
        let here = at("2026-11-24T03:10:00Z");
        let hour = Duration::from_secs(3_600);
        let long = "锁".repeat(170);
        let told = |now: &str, done: Option<&str>| {
            let done = done.map(|tick| {
                let (tick, by) = (tick.parse().unwrap(), (LeaseId::random(), "host-7".into()));
                Done::new(tick, by, here, DateTime::<Utc>::MAX_UTC)
            });
            let (now, done) = (at(now), done.as_ref());
            let told = from_a_clock_ahead(&long, done, begun_last(now, hour), now, here);
            if let Some(told) = &told {
                assert!(told.chars().count() <= 300, "{told}");
                assert!(told.ends_with("to run earlier, use another key"), "{told}");
            }
            told
        };
        let now = "2026-11-24T03:10:00Z";
        assert_eq!(told(now, None), None);
        assert_eq!(told(now, Some("2026-11-24T03:00:00Z")), None);
        assert_eq!(told("2026-11-24T03:10:59Z", None), None);
        // A counter has no time.
        assert_eq!(told(now, Some("90361124")), None);
        let is = told("2026-11-25T03:10:00Z", Some("2026-11-25T03:00:00Z")).unwrap();
        assert!(is.contains("1d00h ahead of this host's"), "{is}");
        let was = told(now, Some("2026-11-25T03:00:00Z")).unwrap();
        assert!(was.contains("2026-11-25T03:00:00Z, has not begun"), "{was}");
    }

    #[test]
    fn a_tick_begins_at_a_multiple_of_its_length() {
        let at = |time: &str| time.parse::<DateTime<Utc>>().unwrap();
        let hour = Duration::from_secs(3_600);
        for time in ["2026-11-24T03:00:00Z", "2026-11-24T03:59:59.999Z"] {
            assert_eq!(
                begun_last(at(time), hour),
                at("2026-11-24T03:00:00Z").into()
            );
        }
        let day = 24 * hour;
        assert_eq!(
            begun_last(at("1969-12-31T05:00:00Z"), day),
            at("1969-12-31T00:00:00Z").into()
        );
    }
}
