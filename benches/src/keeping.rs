//! A child process that keeps very many leases alive, and how the measuring process talks to it. In a separate process,
//! the memory and the tasks are those of the leases alone.
//!
//! The child reads an `Order`, acquires the leases, keeps them, and closes when it is told to. It reports each step
//! with an `Event`. It ends when its input ends.

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

/// The prefix of all keys.
pub const PREFIX: &str = "kept-";
/// How long the child sends acquires. It acquires nothing after this time.
const ACQUIRING: Duration = Duration::from_secs(300);
/// How much longer than expected a step may take. Only a step that hangs takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub engine: Engine,
    pub address: String,
    pub database: String,
    /// The name of a collection or an alias.
    pub place: String,
    pub leases: usize,
    pub ttl: Duration,
    /// For how long the leases are kept after all of them were acquired.
    pub hold: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
enum Event {
    Acquired(Acquired),
    Kept(Kept),
    Closed(Closed),
}

/// The child has acquired as many leases as it could.
#[derive(Debug, Serialize, Deserialize)]
pub struct Acquired {
    pub seconds: f64,
    pub commands: u64,
    pub granted: usize,
    /// How many acquires failed. The remaining keys were not asked for in time.
    pub failed: usize,
    /// How many leases were lost while others were still being acquired.
    pub lost: usize,
    pub rss: f64,
}

/// The child has kept the leases for as long as ordered.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    pub seconds: f64,
    pub commands: u64,
    /// The most commands in about one second.
    pub commands_at_most: f64,
    pub cpu_seconds: f64,
    /// The longest time since the last answered renewal of a live lease was sent.
    pub longest_without_renewal: f64,
    /// The largest number of tasks of the client, without the tasks of this program.
    pub tasks: usize,
}

/// The client is closed, and everything that belonged to it is dropped.
#[derive(Debug, Serialize, Deserialize)]
pub struct Closed {
    pub seconds: f64,
    pub commands: u64,
    /// How many leases were lost before the close.
    pub lost: usize,
    /// Whether the close ended by itself.
    pub ended: bool,
    pub rss_at_most: f64,
    pub rss: f64,
    pub tasks: usize,
}

/// The child process, as the measuring process sees it. The process ends when this value is dropped.
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
        // The order is not an argument: everybody can read the arguments of a process, and an address may contain a
        // password.
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

/// How long a close may take: by its documentation the longest ttl and a call, and some extra time.
fn closing(ttl: Duration) -> Duration {
    ttl + Duration::from_secs(60)
}
