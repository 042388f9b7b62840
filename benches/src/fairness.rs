//! How evenly processes share a key: how long each waited for it, and how often each was granted it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;

use crate::{
    handoffs::{Granted, Span, inside},
    results::{Metric, SideResult},
    rounds::Sample,
};

/// How long the waiters waited, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waits {
    pub p50: f64,
    pub p99: f64,
    pub longest: f64,
}

impl Waits {
    /// The waits of these grants; `None` if there are no grants.
    pub fn of(granted: &[Granted]) -> Option<Self> {
        let mut waits: Vec<Duration> = granted.iter().map(|grant| grant.waited).collect();
        waits.sort();
        let millis = |wait: &Duration| wait.as_secs_f64() * 1e3;
        let at = |part: f64| {
            let place = (part * waits.len() as f64).ceil() as usize;
            waits.get(place.saturating_sub(1)).map(millis)
        };
        Some(Self {
            p50: at(0.5)?,
            p99: at(0.99)?,
            longest: waits.last().map(millis)?,
        })
    }
}

/// The longest wait of each side over all rounds.
#[derive(Debug, Default)]
pub struct Longest(Mutex<Vec<(&'static str, Duration)>>);

impl Longest {
    /// Records the waits of one round.
    pub fn record(&self, side: &'static str, granted: &[Granted]) {
        let longest = granted.iter().map(|grant| grant.waited).max();
        self.0.lock().extend(longest.map(|wait| (side, wait)));
    }

    /// Adds the longest wait to the figures of each side.
    pub fn add_to(&self, sides: &mut [SideResult]) {
        let waits = self.0.lock();
        for side in sides {
            let own = waits.iter().filter(|it| it.0 == side.name);
            let rounds = own.clone().count();
            if let Some(longest) = own.map(|it| it.1.as_secs_f64() * 1e3).reduce(f64::max) {
                let metric = Metric::single("longest of all, ms", rounds, longest);
                side.metrics.push(metric);
            }
        }
    }
}

/// The figures of processes that have one task each and all do the same.
///
/// A perfect turn is the number of processes times the mean time between two grants. It is the time between two grants
/// of one process if every other process is granted the key once in between.
pub fn of_equals(granted: &[Granted], processes: usize, span: Span) -> Result<Sample> {
    let inside = inside(granted, span);
    ensure!(
        !inside.is_empty(),
        "the key was never granted in a turn: measure for longer"
    );
    // Tasks that still wait at the end count too, because they get the key after it.
    let waits = Waits::of(granted).context("no grants")?;
    let grants = inside.len() as f64 / span.time.as_secs_f64();
    let turn = processes as f64 / grants * 1e3;
    let mean = inside.len() as f64 / processes as f64;
    let of = |process| inside.iter().filter(|it| it.process == process).count() as f64;
    let shares: Vec<f64> = (0..processes).map(|it| 100.0 * of(it) / mean).collect();
    let figures = vec![
        ("grants/s", grants),
        ("wait p50, ms", waits.p50),
        ("wait p99, ms", waits.p99),
        ("longest, ms", waits.longest),
        ("perfect turn, ms", turn),
        ("p99 / turn", waits.p99 / turn),
        ("longest / turn", waits.longest / turn),
        (
            "least share, %",
            shares.iter().copied().fold(f64::INFINITY, f64::min),
        ),
        ("most share, %", shares.iter().copied().fold(0.0, f64::max)),
    ];
    Ok(Sample {
        figures,
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(at: u64, process: usize, waited: u64) -> Granted {
        Granted {
            at: Duration::from_millis(at),
            process,
            task: 0,
            waited: Duration::from_millis(waited),
        }
    }

    #[test]
    fn perfect_turns_are_one_turn_long_and_share_evenly() {
        let granted: Vec<_> = (0..100)
            .map(|number| grant(number * 10, number as usize % 2, 20))
            .collect();
        let span = Span {
            begin: Duration::ZERO,
            time: Duration::from_secs(1),
        };
        let figures = of_equals(&granted, 2, span).unwrap().figures;
        let of = |name: &str| figures.iter().find(|it| it.0 == name).unwrap().1;
        assert_eq!(of("grants/s"), 100.0);
        assert_eq!(of("perfect turn, ms"), 20.0);
        assert_eq!(of("p99 / turn"), 1.0);
        assert_eq!((of("least share, %"), of("most share, %")), (100.0, 100.0));
    }

    #[test]
    fn the_longest_wait_of_few_is_their_99th_percentile() {
        let granted = [grant(0, 0, 5), grant(1, 0, 1), grant(2, 0, 9)];
        let waits = Waits::of(&granted).unwrap();
        assert_eq!((waits.p50, waits.p99, waits.longest), (5.0, 9.0, 9.0));
        assert_eq!(Waits::of(&[]), None);
    }
}
