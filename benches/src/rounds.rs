//! Sides that take turns, and their figures over all rounds.
//!
//! The speed of a machine changes from one second to the next. So every round runs each side for a moment, in a random
//! order, and each ratio compares two sides of the same round. Other load on the machine then affects all sides alike.
//! The reported figure is the median over the rounds.

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;

use crate::{
    cpu::{self, Server},
    results::{Metric, Quartiles, SideResult},
    times::Times,
};

/// The figures of one side in one round.
#[derive(Debug, Default)]
pub struct Sample {
    pub figures: Vec<(&'static str, f64)>,
    /// How long each operation took, if that is measured.
    pub times: Option<Times>,
    /// The number of operations, if they are counted.
    pub operations: Option<u64>,
}

impl Sample {
    fn get(&self, name: &str) -> Option<f64> {
        let mut figures = self.figures.iter();
        figures.find(|figure| figure.0 == name).map(|it| it.1)
    }
}

/// One of the implementations that are compared.
#[async_trait]
pub trait Side: Send + Sync {
    fn name(&self) -> &'static str;

    /// Works for about this long.
    async fn turn(&self, time: Duration) -> Result<Sample>;
}

/// The number of rounds, the length of a turn, and the server that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    pub turn: Duration,
    /// The process of the server; `None` if it runs on another machine.
    pub server: Option<Server>,
    pub sizes: Sizes,
}

/// The options of the command line for the cases that keep leases. `None` means the default of the case.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    pub leases: Option<usize>,
    pub ttl: Option<Duration>,
    /// The number of busy loops for each core.
    pub busy_loops: Option<usize>,
}

/// The fewest rounds for which quartiles are meaningful.
const FEWEST: usize = 15;
const MOST: usize = 41;
/// The number of rounds with long turns.
const LONG: usize = 5;
/// The usual length of a turn, in seconds. Shorter turns mostly measure their beginning and end.
const USUAL: f64 = 0.3;
const SHORTEST: f64 = 0.02;

impl Plan {
    /// A plan in which each side works for this many seconds in total.
    pub fn of(seconds: f64) -> Self {
        let rounds = ((seconds / USUAL) as usize).clamp(FEWEST, MOST);
        let turn = Duration::from_secs_f64((seconds / rounds as f64).max(SHORTEST));
        Self {
            rounds,
            turn,
            server: None,
            sizes: Sizes::default(),
        }
    }

    /// A plan with a few long turns, for effects that need many grants. Together they take this many times as long as
    /// the turns of this plan.
    pub fn long(self, times: u32) -> Self {
        let all = self.turn * u32::try_from(self.rounds).unwrap_or(u32::MAX) * times;
        Self {
            rounds: LONG,
            turn: all / LONG as u32,
            ..self
        }
    }

    /// A plan with longer turns, for effects that need time to show.
    pub fn slower(self, times: u32) -> Self {
        Self {
            rounds: FEWEST,
            turn: self.turn * times,
            ..self
        }
    }
}

/// The figures of each side in each round.
pub struct Rounds {
    sides: Vec<(String, Vec<Sample>)>,
}

impl Rounds {
    /// Lets the sides take turns. The other sides are compared with the first one.
    pub async fn run(plan: Plan, sides: &[Box<dyn Side>]) -> Result<Self> {
        let mut kept: Vec<(String, Vec<Sample>)> = sides
            .iter()
            .map(|side| (side.name().to_owned(), Vec::new()))
            .collect();
        let mut order: Vec<usize> = (0..sides.len()).collect();
        // The first round is a warm-up.
        for round in 0..=plan.rounds {
            fastrand::shuffle(&mut order);
            for &place in &order {
                let side = &sides[place];
                let sample = metered(plan, &**side).await;
                let sample = sample.with_context(|| format!("the side '{}'", side.name()))?;
                if round > 0 {
                    kept[place].1.push(sample);
                }
            }
        }
        Ok(Self { sides: kept })
    }

    /// Adds a side with the difference between the processor times of two sides, round by round.
    pub fn with_difference(mut self, more: &str, less: &str) -> Self {
        let find = |name: &str| self.sides.iter().find(|side| side.0 == name);
        let (Some((_, mores)), Some((_, lesses))) = (find(more), find(less)) else {
            return self;
        };
        let rounds = mores.iter().zip(lesses);
        let differences = rounds
            .map(|(more, less)| {
                let times = [CLIENT, SERVER].into_iter();
                let difference = |name| Some((name, more.get(name)? - less.get(name)?));
                Sample {
                    figures: times.filter_map(difference).collect(),
                    ..Sample::default()
                }
            })
            .collect();
        self.sides.push((format!("{more} − {less}"), differences));
        self
    }

    pub fn figures(self) -> Result<Vec<SideResult>> {
        let Some((_, base)) = self.sides.first() else {
            return Ok(Vec::new());
        };
        let sides = self.sides.iter().enumerate();
        sides
            .map(|(place, (name, samples))| {
                let mut metrics = metrics(samples, (place > 0).then_some(base));
                // The percentiles stand behind the rate, before the processor times.
                let behind = metrics.len().min(1);
                metrics.splice(behind..behind, percentiles(samples)?);
                let name = name.clone();
                Ok(SideResult { name, metrics })
            })
            .collect()
    }
}

/// The percentiles of the times of all rounds together.
fn percentiles(samples: &[Sample]) -> Result<Vec<Metric>> {
    let mut times = samples.iter().filter_map(|sample| sample.times.as_ref());
    let Some(first) = times.next() else {
        return Ok(Vec::new());
    };
    let mut all = first.clone();
    for more in times {
        all.add(more)?;
    }
    let figures = all.figures().into_iter();
    let metric = |(name, value)| Metric::single(name, samples.len(), value);
    Ok(figures.map(metric).collect())
}

fn metrics(samples: &[Sample], base: Option<&Vec<Sample>>) -> Vec<Metric> {
    let names = samples
        .first()
        .into_iter()
        .flat_map(|sample| &sample.figures);
    let names = names.map(|figure| figure.0);
    let metric = |name: &'static str| {
        let of = |sample: &Sample| sample.get(name);
        let values: Vec<f64> = samples.iter().filter_map(of).collect();
        let ratios = base.map(|base| {
            let rounds = samples.iter().zip(base);
            let ratios = rounds.filter_map(|(side, base)| Some(of(side)? / of(base)?));
            ratios.collect()
        });
        Some(Metric {
            name: name.into(),
            rounds: values.len(),
            value: Quartiles::of(values)?,
            ratio: ratios.and_then(Quartiles::of),
        })
    };
    names.filter_map(metric).collect()
}

/// The processor time of this process and of the server for one operation: user and system, in µs.
pub const CLIENT: &str = "client CPU, µs";
pub const SERVER: &str = "server CPU, µs";

async fn metered(plan: Plan, side: &dyn Side) -> Result<Sample> {
    let server = || plan.server.and_then(Server::used);
    let (here, there) = (cpu::used(), server());
    let mut sample = side.turn(plan.turn).await?;
    if let Some(operations) = sample.operations.filter(|number| *number > 0) {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / operations as f64;
        sample.figures.push((CLIENT, each(cpu::used() - here)));
        if let (Some(before), Some(after)) = (there, server()) {
            sample
                .figures
                .push((SERVER, each(after.saturating_sub(before))));
        }
    }
    Ok(sample)
}

/// Lets the sides take turns, and returns their figures.
pub async fn compare(plan: Plan, sides: &[Box<dyn Side>]) -> Result<Vec<SideResult>> {
    Rounds::run(plan, sides).await?.figures()
}
