//! The memory of this process, as the kernel counts it.

use std::fs;

use anyhow::{Context, Result};

/// Resident memory, in MB.
#[derive(Clone, Copy, Debug)]
pub struct Rss {
    pub now: f64,
    /// The largest value so far.
    pub peak: f64,
}

impl Rss {
    pub fn of_this_process() -> Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
            let kilobytes: f64 = kilobytes.with_context(|| format!("no {name}"))?;
            anyhow::Ok(kilobytes * 1_024.0 / 1e6)
        };
        Ok(Self {
            now: field("VmRSS:")?,
            peak: field("VmHWM:")?,
        })
    }
}
