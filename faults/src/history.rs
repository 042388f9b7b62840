//! What the clients saw, and when, on a clock that all processes of this machine share.

mod lines;

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::documents::Content;

/// A time in microseconds. It is not the time of day, because a process may be given a wrong time of day.
pub type Time = u64;

/// A clock that starts at the current time of the machine's monotonic clock and then follows tokio's clock, so that a
/// test can pause it.
#[derive(Clone, Copy)]
pub struct Clock {
    started: Instant,
    at: Time,
}

impl Clock {
    pub fn of_this_machine() -> Self {
        let reading = || {
            let before = Instant::now();
            // The time comes from the kernel directly, and not from a library that fakes the clock of a process.
            let now = clock_gettime(ClockId::Monotonic);
            let at = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
            let clock = Self {
                started: before,
                at: at.as_micros() as Time,
            };
            (before.elapsed(), clock)
        };
        // A pause between the two readings would shift all times that this process records. So the fastest of many
        // readings is used.
        let readings = (0..100).map(|_| reading());
        readings
            .min_by_key(|it| it.0)
            .map_or_else(|| reading().1, |it| it.1)
    }

    pub fn now(&self) -> Time {
        self.at + self.started.elapsed().as_micros() as Time
    }
}

/// The fence of a grant that shows none.
pub const NO_FENCE: i64 = 0;

/// How much of a key a holder takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    All,
    /// One of this many shares.
    OneOf(u32),
}

/// An answer to a request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted {
        fence: i64,
    },
    Refused {
        /// When the key still had a holder; 0 if it had none, and was kept for other processes.
        held: Time,
        /// Until when the place of the waiting process certainly counts; 0 if that is unknown.
        until: Time,
    },
    /// The tick of the request is done. The key was not judged, and no place was taken.
    Done,
}

/// What a client saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Granted {
        key: String,
        lease: String,
        claim: Claim,
        fence: i64,
        sent: Time,
        got: Time,
    },
    /// The holder relied on its lease at this time. The last such event of a grant is its end. Grants from memory have
    /// the lease of the store behind them, and a fence of their own.
    Ended {
        lease: String,
        fence: i64,
        last: Time,
    },
    /// A lease that stayed with its process does not stay any more, for this reason.
    WentBack {
        key: String,
        lease: String,
        reason: String,
        at: Time,
    },
    /// A client asked a store which of these keys are waited for, and was told these.
    Looked {
        asked: Vec<String>,
        told: Vec<String>,
        sent: Time,
        got: Time,
    },
    /// How long a key may stay with a process while another one waits for it, in this run.
    RecallsTake { longest: Time },
    /// The release of the lease with this fence was answered.
    Released { key: String, fence: i64, got: Time },
    /// The ledger or a guard refused this fence, although its holder still relied on its lease after that.
    Refused { key: String, fence: i64 },
    /// The answer to a request: the leases with these fences hold the key.
    Held {
        key: String,
        fences: Vec<i64>,
        sent: Time,
        got: Time,
    },
    /// The work for a tick began under this lease, which was live then.
    Began { tick: i64, lease: String, at: Time },
    /// The server acknowledged that a tick is done.
    TickDone { tick: i64, got: Time },
    /// The answer to a request for a tick: this tick is done, under this lease.
    ToldDone {
        asked: i64,
        done: i64,
        lease: String,
        sent: Time,
        got: Time,
    },
    /// A holder with this fence read a document of this key. If the document is guarded, the read was a claim.
    DocumentRead {
        key: String,
        guarded: bool,
        fence: i64,
        content: Content,
        got: Time,
    },
    /// A holder with this fence sent a write of a document. There may never be an answer.
    WriteAsked {
        key: String,
        guarded: bool,
        fence: i64,
        /// The number that is written.
        number: i64,
        sent: Time,
    },
    /// The write with this fence was carried out, or a guard refused it.
    WriteAnswered {
        key: String,
        guarded: bool,
        fence: i64,
        written: bool,
        got: Time,
    },
    /// This limiter granted a permit.
    Permit {
        limiter: String,
        sent: Time,
        got: Time,
    },
    /// Between these times, a node of a search engine had a fault that may have undone what it told in a refusal. A refusal
    /// reads what the primary has, even if none of its copies has it yet. (The search engines call this a dirty read.)
    ReadsAtRisk { from: Time, to: Time },
    /// Between these times, a server of MongoDB had a fault that may have undone releases which only this server had
    /// acknowledged, and grants of which it told in a refusal. (It tells that a tick is done when a majority has that.)
    /// The leases have this ttl.
    ReleasesAtRisk { from: Time, to: Time, ttl: Time },
    /// A client sent a request for a key to a store. There may never be an answer.
    Asked {
        /// A number that no other request has.
        request: u64,
        key: String,
        lease: String,
        /// The process that waits; `None` if the request does not wait.
        waiter: Option<String>,
        claim: Claim,
        /// Whether the request may come before the waiting processes.
        overtakes: bool,
        /// How many fences in a row a grant takes. If it is more than one, the lease is to stay with the process.
        fences: u16,
        sent: Time,
    },
    /// The request with this number was answered.
    Answered {
        request: u64,
        answer: Answer,
        got: Time,
    },
    /// A process asks a store to give up its place.
    Leaves { waiter: String, sent: Time },
    /// A fault of a server begins.
    ServerSuffers { at: Time },
    /// The servers grant leases again.
    ServersAreBack { at: Time },
    /// Other operations, such as releases, and waits without success.
    Operations(u64),
}

/// Records what the clients see.
#[derive(Clone)]
pub struct Recorder {
    pub clock: Clock,
    to: Arc<Mutex<To>>,
}

enum To {
    Memory(Vec<Event>),
    /// Each event is written as a line at once, so that the events of a killed process are kept.
    File(File),
}

impl Recorder {
    pub fn in_memory(clock: Clock) -> Self {
        let to = Arc::new(Mutex::new(To::Memory(Vec::new())));
        Self { clock, to }
    }

    pub fn to_file(clock: Clock, path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let to = Arc::new(Mutex::new(To::File(file)));
        Ok(Self { clock, to })
    }

    pub fn saw(&self, event: Event) {
        match &mut *self.to.lock() {
            To::Memory(events) => events.push(event),
            To::File(file) => file.write_all(format!("{event}\n").as_bytes()).unwrap(),
        }
    }

    /// The events that were recorded in memory.
    pub fn events(&self) -> Vec<Event> {
        match &*self.to.lock() {
            To::Memory(events) => events.clone(),
            To::File(_) => Vec::new(),
        }
    }
}

/// Reads a file of events. The last line of a killed process may be incomplete.
pub fn read(path: &Path) -> Result<Vec<Event>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().map(str::parse);
    lines.collect::<Result<_>>().context("a history")
}

/// Reads all files of a folder. Each of them is the history of one process.
pub fn read_each(folder: &Path) -> Result<Vec<Vec<Event>>> {
    let files = std::fs::read_dir(folder)?;
    files.map(|file| read(&file?.path())).collect()
}

/// The events of all files of a folder.
pub fn read_all(folder: &Path) -> Result<Vec<Event>> {
    Ok(read_each(folder)?.concat())
}
