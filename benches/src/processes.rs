//! A child process that contends for a key, and how the measuring process talks to it.
//!
//! The child reads lines `BEGIN-NANOSECONDS MILLISECONDS KEY` and answers each line with its grants, until its input
//! ends.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result};
use leasehold::Leases;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    cli::ChildOptions,
    cpu,
    engines::connect,
    handoffs::{Granted, Span, Work, contend},
    locks::SharedLocks,
    ours::mongo_store,
    raw::RawLocks,
    waiting::Way,
};

/// Runs the child process.
pub async fn child(options: ChildOptions) -> Result<()> {
    let client = connect(&options.uri, &options.database, None).await?;
    let database = client.database(&options.database);
    let collection = database.collection(&options.collection);
    let locks: SharedLocks = match options.side.as_str() {
        "raw" => std::sync::Arc::new(RawLocks::new("raw", &collection)),
        side => {
            let way = Way::of(side).with_context(|| format!("no side '{side}'"))?;
            let leases = Leases::new(mongo_store(&collection).await?);
            way.shared_locks(leases, options.shared)
        }
    };
    let least = Duration::from_millis(options.hold_millis);
    let most = options.hold_most_millis.map(Duration::from_millis);
    let work = Work {
        hold: (least, most.unwrap_or(least)),
        pause: Duration::from_millis(options.pause_millis),
    };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut out = tokio::io::stdout();
    while let Some(line) = lines.next_line().await? {
        let mut words = line.split(' ');
        let mut word = || words.next().context("a word is missing");
        let begin = Duration::from_nanos(word()?.parse()?);
        let time = Duration::from_millis(word()?.parse()?);
        let key = word()?;
        let span = Span { begin, time };
        let granted = contend(&locks, key, 0, options.tasks, work, span).await?;
        let mut answer = serde_json::to_string(&granted)?;
        answer.push('\n');
        out.write_all(answer.as_bytes()).await?;
        out.flush().await?;
    }
    Ok(())
}

/// The child process, as the measuring process sees it.
pub struct Contender {
    number: usize,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// The process ends when this value is dropped.
    _child: Child,
}

/// Lets these processes contend for this key. Returns the grants of all of them, and the time in which they contended.
pub async fn contend_all(
    contenders: &mut [Contender],
    key: &str,
    time: Duration,
) -> Result<(Vec<Granted>, Span)> {
    let span = Span {
        // All processes have read the line by this time.
        begin: cpu::monotonic() + Duration::from_millis(20),
        time,
    };
    for contender in contenders.iter_mut() {
        contender.tell(span, key).await?;
    }
    let mut granted = Vec::new();
    for contender in contenders.iter_mut() {
        granted.extend(contender.answer().await?);
    }
    Ok((granted, span))
}

impl Contender {
    pub fn start(number: usize, options: &ChildOptions) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("child");
        if let Some(most) = options.hold_most_millis {
            command.args(["--hold-most-millis", &most.to_string()]);
        }
        if options.shared {
            command.arg("--shared");
        }
        let mut child = command
            .args(["--uri", &options.uri])
            .args(["--database", &options.database])
            .args(["--side", &options.side])
            .args(["--collection", &options.collection])
            .args(["--tasks", &options.tasks.to_string()])
            .args(["--hold-millis", &options.hold_millis.to_string()])
            .args(["--pause-millis", &options.pause_millis.to_string()])
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

    async fn tell(&mut self, span: Span, key: &str) -> Result<()> {
        let (begin, time) = (span.begin.as_nanos(), span.time.as_millis());
        let line = format!("{begin} {time} {key}\n");
        Ok(self.input.write_all(line.as_bytes()).await?)
    }

    async fn answer(&mut self) -> Result<Vec<Granted>> {
        let line = self.output.next_line().await?;
        let line = line.context("a process ended; what it said is above")?;
        let mut granted: Vec<Granted> = serde_json::from_str(&line)?;
        for grant in &mut granted {
            grant.process = self.number;
        }
        Ok(granted)
    }
}
