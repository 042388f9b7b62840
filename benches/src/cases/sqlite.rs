//! Cycles on the keys of an SQLite file, by tasks of one process and of several.

use std::{
    path::Path, process::Stdio, sync::atomic::AtomicU64, sync::atomic::Ordering, time::Duration,
};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use futures::future::try_join_all;
use leasehold::{Attempt, Leases, SqliteStore};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::Mutex,
};

use crate::{
    cli::SqliteOptions,
    cpu,
    handoffs::waits,
    locks::LONG,
    results::CaseResult,
    rounds::{Plan, Sample, Side, compare},
};

/// How many keys each task uses, again and again.
const KEYS: u64 = 16;
/// All processes have read their line by this time.
const PREPARES: Duration = Duration::from_millis(20);

pub const ABOUT: &str = "Acquires of free keys in a file, each with its release. Each task has keys of its own, which \
    exist. Each of the processes has 8 tasks.";

pub async fn measure(plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("locks.db");
    let sides = [("1 task", 1, 1), ("64 tasks", 1, 64), ("8 processes", 8, 8)];
    let sides = sides.map(|(name, processes, tasks)| Crowd::start(name, &path, processes, tasks));
    let sides = sides.into_iter().collect::<Result<Vec<_>>>()?;
    result.add("keys that exist", compare(plan, &sides).await?);
    Ok(result)
}

/// Processes with some tasks each.
struct Crowd {
    name: &'static str,
    processes: Mutex<Vec<Process>>,
}

struct Process {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// The process ends when this value is dropped.
    _child: Child,
}

impl Crowd {
    fn start(
        name: &'static str,
        path: &Path,
        processes: usize,
        tasks: usize,
    ) -> Result<Box<dyn Side>> {
        let start = |number: usize| {
            let mut child = Command::new(std::env::current_exe()?)
                .arg("sqlite")
                .arg(path)
                .args([&format!("{name}-{number}"), &tasks.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            let output = child.stdout.take().context("no output")?;
            anyhow::Ok(Process {
                input: child.stdin.take().context("no input")?,
                output: BufReader::new(output).lines(),
                _child: child,
            })
        };
        let processes = (0..processes).map(start).collect::<Result<_>>()?;
        Ok(Box::new(Self {
            name,
            processes: Mutex::new(processes),
        }))
    }
}

#[async_trait]
impl Side for Crowd {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn turn(&self, time: Duration) -> Result<Sample> {
        let mut processes = self.processes.lock().await;
        let begin = (cpu::monotonic() + PREPARES).as_nanos();
        let line = format!("{begin} {}\n", time.as_millis());
        for process in processes.iter_mut() {
            process.input.write_all(line.as_bytes()).await?;
        }
        let mut took: Vec<Duration> = Vec::new();
        for process in processes.iter_mut() {
            let line = process.output.next_line().await?;
            let line = line.context("a process ended; what it said is above")?;
            took.extend(serde_json::from_str::<Vec<Duration>>(&line)?);
        }
        let (p50, p99) = waits(took.iter().copied())?;
        let figures = vec![
            ("cycles/s", took.len() as f64 / time.as_secs_f64()),
            ("cycle p50, ms", p50),
            ("cycle p99, ms", p99),
        ];
        Ok(Sample {
            figures,
            ..Sample::default()
        })
    }
}

/// Runs one of the processes. It reads lines `BEGIN-NANOSECONDS MILLISECONDS`, and answers each with the times that its
/// cycles took, until its input ends.
pub async fn child(options: SqliteOptions) -> Result<()> {
    let leases = Leases::new(SqliteStore::open(&options.path).await?);
    let turns = AtomicU64::new(0);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut out = tokio::io::stdout();
    while let Some(line) = lines.next_line().await? {
        let (begin, time) = line.split_once(' ').context("a word is missing")?;
        let begin = Duration::from_nanos(begin.parse()?);
        let end = begin + Duration::from_millis(time.parse()?);
        tokio::time::sleep(begin.saturating_sub(cpu::monotonic())).await;
        let first = turns.fetch_add(1, Ordering::Relaxed);
        let tasks = (0..options.tasks).map(|task| {
            let (leases, name) = (leases.clone(), options.name.clone());
            tokio::spawn(async move {
                let mut took = Vec::new();
                while cpu::monotonic() < end {
                    let key = format!("{name}-{task}-{}", (first + took.len() as u64) % KEYS);
                    let asked = cpu::monotonic();
                    match leases.try_acquire(&key, LONG).await? {
                        Attempt::Acquired(lease) => lease.release().await?,
                        Attempt::Held(held) => bail!("a free key is held: {held:?}"),
                    }
                    took.push(cpu::monotonic() - asked);
                }
                anyhow::Ok(took)
            })
        });
        let mut took = Vec::new();
        for of_task in try_join_all(tasks.collect::<Vec<_>>()).await? {
            took.extend(of_task?);
        }
        let mut answer = serde_json::to_string(&took)?;
        answer.push('\n');
        out.write_all(answer.as_bytes()).await?;
        out.flush().await?;
    }
    Ok(())
}
