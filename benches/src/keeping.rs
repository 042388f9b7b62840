//! A process that keeps very many leases alive, and how the one that measures speaks to it. Its memory and
//! its tasks are then those of the leases, and of nothing else that is measured.
//!
//! It reads an `Order`, acquires, keeps, says so by an `Event` each, and closes when it is told to. It
//! ends when its input does.

mod child;
mod seen;

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

pub use self::child::child;
use crate::engines::Engine;

/// What all keys begin with.
pub const PREFIX: &str = "kept-";
/// After this nothing is asked for any more.
const ACQUIRING: Duration = Duration::from_secs(300);
/// How much longer than it should take something may take. Only what hangs takes that long.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub engine: Engine,
    pub address: String,
    pub database: String,
    /// A collection, or an alias.
    pub place: String,
    pub leases: usize,
    pub ttl: Duration,
    /// For how long they are kept once all are acquired.
    pub hold: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
enum Event {
    Acquired(Acquired),
    Kept(Kept),
    Closed(Closed),
}

/// All that could be acquired are.
#[derive(Debug, Serialize, Deserialize)]
pub struct Acquired {
    pub seconds: f64,
    pub commands: u64,
    pub granted: usize,
    /// How many acquires failed; the rest was not asked for in time.
    pub failed: usize,
    /// How many were lost while others were still being acquired.
    pub lost: usize,
    pub rss: f64,
}

/// They were kept for as long as was ordered.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    pub seconds: f64,
    pub commands: u64,
    /// The most in one second, more or less.
    pub commands_at_most: f64,
    pub cpu_seconds: f64,
    /// The longest that a live lease was seen without an answered renewal since the last one was sent.
    pub longest_without_renewal: f64,
    /// The most that the client had beside those of this program.
    pub tasks: usize,
}

/// They are closed, and all that belonged to them is dropped.
#[derive(Debug, Serialize, Deserialize)]
pub struct Closed {
    pub seconds: f64,
    pub commands: u64,
    /// All that were lost before the close.
    pub lost: usize,
    /// Whether the close came to an end by itself.
    pub ended: bool,
    pub rss_at_most: f64,
    pub rss: f64,
    pub tasks: usize,
}

/// Such a process, seen from the one that measures. It ends when this is dropped.
pub struct Keeping {
    order: Order,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Keeping {
    pub async fn start(order: Order) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("keep")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut input = child.stdin.take().context("no input")?;
        let output = child.stdout.take().context("no output")?;
        // Not an argument: those of a process are for all to see, and an address may have a password.
        let line = format!("{}\n", serde_json::to_string(&order)?);
        input.write_all(line.as_bytes()).await?;
        Ok(Self {
            order,
            input,
            output: BufReader::new(output).lines(),
            _child: child,
        })
    }

    pub async fn acquired(&mut self) -> Result<Acquired> {
        match self.event(ACQUIRING + self.order.ttl).await? {
            Event::Acquired(acquired) => Ok(acquired),
            other => bail!("{other:?}"),
        }
    }

    pub async fn kept(&mut self) -> Result<Kept> {
        match self.event(self.order.hold).await? {
            Event::Kept(kept) => Ok(kept),
            other => bail!("{other:?}"),
        }
    }

    pub async fn close(mut self) -> Result<Closed> {
        self.input.write_all(b"close\n").await?;
        match self.event(closing(self.order.ttl)).await? {
            Event::Closed(closed) => Ok(closed),
            other => bail!("{other:?}"),
        }
    }

    async fn event(&mut self, usual: Duration) -> Result<Event> {
        let line = timeout(usual + PATIENCE, self.output.next_line()).await;
        let line = line.context("the process that keeps the leases hangs")??;
        let line = line.context("a process ended; what it said is above")?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// How long a close may take: that of the longest ttl and a call, by its documentation, and some more.
fn closing(ttl: Duration) -> Duration {
    ttl + Duration::from_secs(60)
}
