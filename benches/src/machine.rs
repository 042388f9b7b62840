//! The machine and the engines, on which the figures depend. There is no date, because the figures belong to the code.

use std::{fmt, fs, path::Path, thread};

use anyhow::Result;
use rustix::system::uname;
use serde::{Deserialize, Serialize};

use crate::engines::Engine;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_gib: Option<u64>,
    pub kernel: String,
    /// The name and the version of each engine.
    pub engines: Vec<(String, String)>,
}

impl Machine {
    pub async fn look(engines: &[Engine]) -> Result<Self> {
        let mut versions = Vec::new();
        for engine in engines {
            versions.push((engine.label(), engine.version().await?));
        }
        Ok(Self {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cores: thread::available_parallelism()?.get(),
            memory_gib: memory(),
            kernel: uname().release().to_string_lossy().into_owned(),
            engines: versions,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cores, processor) = (self.cores, &self.processor);
        write!(out, "Measured on {cores} cores of {processor}")?;
        if let Some(memory) = self.memory_gib {
            write!(out, " with {memory} GiB of memory")?;
        }
        write!(
            out,
            ", Linux {}. Engines, on the same machine: ",
            self.kernel
        )?;
        let engines = self.engines.iter();
        let engines: Vec<_> = engines
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        write!(out, "{}.", engines.join(", "))
    }
}

impl Machine {
    /// Adds the engines of an earlier run on the same machine, whose results are still stored.
    pub fn with_those_before(mut self, kept: &Path) -> Self {
        let text = fs::read_to_string(kept).ok();
        let before: Option<Self> = text.and_then(|text| serde_json::from_str(&text).ok());
        let is_same = |before: &Self| {
            (&before.processor, before.cores, &before.kernel)
                == (&self.processor, self.cores, &self.kernel)
        };
        if let Some(before) = before.filter(is_same) {
            for engine in before.engines {
                if !self.engines.iter().any(|known| known.0 == engine.0) {
                    self.engines.push(engine);
                }
            }
        }
        self
    }
}

fn memory() -> Option<u64> {
    let text = field("/proc/meminfo", "MemTotal")?;
    let kilobytes: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some((kilobytes + (1 << 19)) >> 20)
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
