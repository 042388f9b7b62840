//! A process that contends for a key, and how the one that measures speaks to it.
//!
//! It reads lines `BEGIN-NANOSECONDS MILLISECONDS KEY` and answers each with its grants, until its input
//! ends.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use leasehold::Leases;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    cli::ChildOptions,
    engines::connect,
    handoffs::{Granted, Span, contend},
    locks::SharedLocks,
    ours::{Whole, mongo_store},
    raw::RawLocks,
};

/// What such a process does.
pub async fn child(options: ChildOptions) -> Result<()> {
    let client = connect(&options.uri, &options.database, None).await?;
    let database = client.database(&options.database);
    let collection = database.collection(&options.collection);
    let locks: SharedLocks = match options.side.as_str() {
        "raw" => std::sync::Arc::new(RawLocks::new("raw", &collection)),
        "leasehold" => Whole::shared(&Leases::new(mongo_store(&collection).await?)),
        other => bail!("no side '{other}'"),
    };
    let hold = Duration::from_millis(options.hold_millis);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut out = tokio::io::stdout();
    while let Some(line) = lines.next_line().await? {
        let mut words = line.split(' ');
        let mut word = || words.next().context("a word is missing");
        let begin = Duration::from_nanos(word()?.parse()?);
        let time = Duration::from_millis(word()?.parse()?);
        let key = word()?;
        let span = Span { begin, time };
        let granted = contend(&locks, key, 0, options.tasks, hold, span).await?;
        let mut answer = serde_json::to_string(&granted)?;
        answer.push('\n');
        out.write_all(answer.as_bytes()).await?;
        out.flush().await?;
    }
    Ok(())
}

/// Such a process, seen from the one that measures.
pub struct Contender {
    number: usize,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// Ends with this.
    _child: Child,
}

impl Contender {
    pub fn start(number: usize, options: &ChildOptions) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("child")
            .args(["--uri", &options.uri])
            .args(["--database", &options.database])
            .args(["--side", &options.side])
            .args(["--collection", &options.collection])
            .args(["--tasks", &options.tasks.to_string()])
            .args(["--hold-millis", &options.hold_millis.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().context("no input")?;
        let output = child.stdout.take().context("no output")?;
        Ok(Self {
            number,
            input,
            output: BufReader::new(output).lines(),
            _child: child,
        })
    }

    pub async fn tell(&mut self, span: Span, key: &str) -> Result<()> {
        let (begin, time) = (span.begin.as_nanos(), span.time.as_millis());
        let line = format!("{begin} {time} {key}\n");
        Ok(self.input.write_all(line.as_bytes()).await?)
    }

    pub async fn answer(&mut self) -> Result<Vec<Granted>> {
        let line = self.output.next_line().await?;
        let line = line.context("a process ended; what it said is above")?;
        let mut granted: Vec<Granted> = serde_json::from_str(&line)?;
        for grant in &mut granted {
            grant.process = self.number;
        }
        Ok(granted)
    }
}
