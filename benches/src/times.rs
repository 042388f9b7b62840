//! How long operations took: percentiles over all rounds of a side.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// The times of one operation. A round has too few of them for a percentile of its own.
#[derive(Clone, Debug)]
pub struct Times {
    p50: &'static str,
    p99: &'static str,
    nanos: Histogram<u64>,
}

impl Times {
    /// Takes the names of the two figures. There are no times yet.
    pub fn new(p50: &'static str, p99: &'static str) -> Result<Self> {
        let nanos = Histogram::new(3).context("no histogram")?;
        Ok(Self { p50, p99, nanos })
    }

    pub fn record(&mut self, time: Duration) -> Result<()> {
        Ok(self.nanos.record(u64::try_from(time.as_nanos())?)?)
    }

    pub fn add(&mut self, other: &Self) -> Result<()> {
        Ok(self.nanos.add(&other.nanos)?)
    }

    pub fn count(&self) -> u64 {
        self.nanos.len()
    }

    /// The median and the 99th percentile, in milliseconds, each with its name.
    pub fn figures(&self) -> [(&'static str, f64); 2] {
        let millis = |part| self.nanos.value_at_quantile(part) as f64 / 1e6;
        [(self.p50, millis(0.5)), (self.p99, millis(0.99))]
    }
}
