//! Sides that take turns, and the figures over their rounds.
//!
//! A machine is not the same from one second to the next. So every round runs each side for a moment, in
//! an order that is shuffled each time, and a ratio is one of the same round: whatever else the machine
//! does meets all of them alike. The figure is the median over the rounds.

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;

use crate::results::{Metric, Quartiles, SideResult};

/// The figures of one side in one round.
pub type Sample = Vec<(&'static str, f64)>;

/// One of those that are compared.
#[async_trait]
pub trait Side: Send + Sync {
    fn name(&self) -> &'static str;

    /// Works for about this long.
    async fn turn(&self, time: Duration) -> Result<Sample>;
}

/// How many rounds, and how long a side's turn is.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    pub turn: Duration,
}

/// Fewer rounds make no quartiles to speak of.
const FEWEST: usize = 15;
const MOST: usize = 41;
/// Shorter turns measure how they begin and end.
const USUAL: f64 = 0.3;
const SHORTEST: f64 = 0.02;

impl Plan {
    /// So that each side has this long.
    pub fn of(seconds: f64) -> Self {
        let rounds = ((seconds / USUAL) as usize).clamp(FEWEST, MOST);
        let turn = Duration::from_secs_f64((seconds / rounds as f64).max(SHORTEST));
        Self { rounds, turn }
    }

    /// Longer turns, for what takes its time to show.
    pub fn slower(self, times: u32) -> Self {
        Self {
            rounds: FEWEST,
            turn: self.turn * times,
        }
    }
}

/// What each side had in each round.
pub struct Rounds {
    sides: Vec<(String, Vec<Sample>)>,
}

impl Rounds {
    /// Lets the sides take turns. The first of them is the one that the others are compared with.
    pub async fn run(plan: Plan, sides: &[Box<dyn Side>]) -> Result<Self> {
        let mut kept: Vec<(String, Vec<Sample>)> = sides
            .iter()
            .map(|side| (side.name().to_owned(), Vec::new()))
            .collect();
        let mut order: Vec<usize> = (0..sides.len()).collect();
        // The first round warms up.
        for round in 0..=plan.rounds {
            fastrand::shuffle(&mut order);
            for &place in &order {
                let side = &sides[place];
                let sample = side.turn(plan.turn).await;
                let sample = sample.with_context(|| format!("the side '{}'", side.name()))?;
                if round > 0 {
                    kept[place].1.push(sample);
                }
            }
        }
        Ok(Self { sides: kept })
    }

    /// One more side: by how much one had more than another, round by round.
    pub fn with_difference(mut self, more: &str, less: &str) -> Self {
        let find = |name: &str| self.sides.iter().find(|side| side.0 == name);
        let (Some((_, mores)), Some((_, lesses))) = (find(more), find(less)) else {
            return self;
        };
        let rounds = mores.iter().zip(lesses);
        let differences = rounds
            .map(|(more, less)| {
                let pairs = more.iter().zip(less);
                pairs
                    .map(|(more, less)| (more.0, more.1 - less.1))
                    .collect()
            })
            .collect();
        self.sides.push((format!("{more} − {less}"), differences));
        self
    }

    pub fn figures(self) -> Vec<SideResult> {
        let Some((_, base)) = self.sides.first() else {
            return Vec::new();
        };
        let sides = self.sides.iter().enumerate();
        sides
            .map(|(place, (name, samples))| SideResult {
                name: name.clone(),
                metrics: metrics(samples, (place > 0).then_some(base)),
            })
            .collect()
    }
}

fn metrics(samples: &[Sample], base: Option<&Vec<Sample>>) -> Vec<Metric> {
    let names = samples.first().into_iter().flatten().map(|figure| figure.0);
    let metric = |name: &'static str| {
        let of = |sample: &Sample| sample.iter().find(|figure| figure.0 == name).map(|f| f.1);
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

/// Lets the sides take turns, and gives the figures.
pub async fn compare(plan: Plan, sides: &[Box<dyn Side>]) -> Result<Vec<SideResult>> {
    Ok(Rounds::run(plan, sides).await?.figures())
}
