//! What clients saw, and when, on one clock that all processes of this machine share.

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

/// A time in microseconds. No clock of day: what a process is told of that may be wrong.
pub type Time = u64;

/// Counts from tokio's clock, so that a test may pause it, and begins where the machine's monotonic
/// clock stands.
#[derive(Clone, Copy)]
pub struct Clock {
    started: Instant,
    at: Time,
}

impl Clock {
    pub fn of_this_machine() -> Self {
        let reading = || {
            let before = Instant::now();
            // Asked of the kernel, past any library that gives a process another clock.
            let now = clock_gettime(ClockId::Monotonic);
            let at = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
            let clock = Self {
                started: before,
                at: at.as_micros() as Time,
            };
            (before.elapsed(), clock)
        };
        // A pause between the two would shift all that this process writes down.
        let readings = (0..100).map(|_| reading());
        readings
            .min_by_key(|it| it.0)
            .map_or_else(|| reading().1, |it| it.1)
    }

    pub fn now(&self) -> Time {
        self.at + self.started.elapsed().as_micros() as Time
    }
}

/// How much of a key a holder takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    All,
    /// A share of as many.
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
        /// Until when the place of the process that waits counts for certain; 0 if that is not known.
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
    /// The holder counted on its lease at this time. The last one of a lease is when it ended.
    Ended { lease: String, last: Time },
    /// The release of the lease with this fence was answered.
    Released { key: String, fence: i64, got: Time },
    /// The ledger or a guard refused this fence, while its holder counted on its lease after that too.
    Refused { key: String, fence: i64 },
    /// Who asked was told that those with these fences hold the key.
    Held {
        key: String,
        fences: Vec<i64>,
        sent: Time,
        got: Time,
    },
    /// The work for a tick began under this lease, which was live then.
    Began { tick: i64, lease: String, at: Time },
    /// It was acknowledged that a tick is done.
    TickDone { tick: i64, got: Time },
    /// Who asked for a tick was told that this one is done, under this lease.
    ToldDone {
        asked: i64,
        done: i64,
        lease: String,
        sent: Time,
        got: Time,
    },
    /// A holder with this fence read a document of this key. It has claimed the guarded one by that.
    DocumentRead {
        key: String,
        guarded: bool,
        fence: i64,
        content: Content,
        got: Time,
    },
    /// A holder with this fence asks for a write of a document. There may never be an answer.
    WriteAsked {
        key: String,
        guarded: bool,
        fence: i64,
        /// What is written.
        number: i64,
        sent: Time,
    },
    /// The write under this fence was carried out, or a guard refused it.
    WriteAnswered {
        key: String,
        guarded: bool,
        fence: i64,
        written: bool,
        got: Time,
    },
    /// Somebody was let through by this limiter.
    Permit {
        limiter: String,
        sent: Time,
        got: Time,
    },
    /// Between these times a server suffered a fault that may have undone releases which it alone acknowledged. The
    /// leases have this ttl.
    ReleasesAtRisk { from: Time, to: Time, ttl: Time },
    /// A client asks a store for a key. There may never be an answer.
    Asked {
        /// A number of its own.
        request: u64,
        key: String,
        lease: String,
        /// The process that waits; `None` if the request does not wait.
        waiter: Option<String>,
        claim: Claim,
        /// Whether it may come before the processes that wait.
        overtakes: bool,
        /// Whether a grant leaves its process the place that it has.
        keeps: bool,
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
    /// A server begins to suffer.
    ServerSuffers { at: Time },
    /// The servers grant leases again.
    ServersAreBack { at: Time },
    /// Releases, and waits that came to nothing, count as operations too.
    Operations(u64),
}

/// Takes down what clients see.
#[derive(Clone)]
pub struct Recorder {
    pub clock: Clock,
    to: Arc<Mutex<To>>,
}

enum To {
    Memory(Vec<Event>),
    /// A line each, written at once: what a process saw before it was killed is there.
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

    /// What was taken down in memory.
    pub fn events(&self) -> Vec<Event> {
        match &*self.to.lock() {
            To::Memory(events) => events.clone(),
            To::File(_) => Vec::new(),
        }
    }
}

/// Reads a file of events. The last line of a process that was killed may be cut.
pub fn read(path: &Path) -> Result<Vec<Event>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().map(str::parse);
    lines.collect::<Result<_>>().context("a history")
}

/// Reads every file of a folder.
pub fn read_all(folder: &Path) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for file in std::fs::read_dir(folder)? {
        events.extend(read(&file?.path())?);
    }
    Ok(events)
}
