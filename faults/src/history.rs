//! What clients saw, and when, on one clock that all processes of this machine share.

use std::{
    fmt::{self, Display},
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// The word for no waiter in a history.
const NOBODY: &str = "-";

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
    /// The ledger refused this fence, while its holder counted on its lease after that too.
    Refused { key: String, fence: i64 },
    /// Who asked was told that those with these fences hold the key.
    Held {
        key: String,
        fences: Vec<i64>,
        sent: Time,
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

impl Claim {
    /// The size as a number: 1 for all of a key.
    fn of(self) -> u32 {
        match self {
            Self::All => 1,
            Self::OneOf(of) => of,
        }
    }
}

impl From<u32> for Claim {
    fn from(of: u32) -> Self {
        match of {
            1 => Self::All,
            of => Self::OneOf(of),
        }
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted {
                key,
                lease,
                claim,
                fence,
                sent,
                got,
            } => {
                let of = claim.of();
                write!(f, "granted {key} {lease} {of} {fence} {sent} {got}")
            }
            Self::Ended { lease, last } => write!(f, "ended {lease} {last}"),
            Self::Held {
                key,
                fences,
                sent,
                got,
            } => {
                let fences: Vec<_> = fences.iter().map(i64::to_string).collect();
                write!(f, "held {key} {} {sent} {got}", fences.join(","))
            }
            Self::Released { key, fence, got } => write!(f, "released {key} {fence} {got}"),
            Self::Refused { key, fence } => write!(f, "refused {key} {fence}"),
            Self::Permit { limiter, sent, got } => write!(f, "permit {limiter} {sent} {got}"),
            Self::ReleasesAtRisk { from, to, ttl } => {
                write!(f, "releases-at-risk {from} {to} {ttl}")
            }
            Self::Asked {
                request,
                key,
                lease,
                waiter,
                claim,
                overtakes,
                keeps,
                sent,
            } => {
                let (waiter, of) = (waiter.as_deref().unwrap_or(NOBODY), claim.of());
                write!(
                    f,
                    "asked {request} {key} {lease} {waiter} {of} {overtakes} {keeps} {sent}"
                )
            }
            Self::Answered {
                request,
                answer,
                got,
            } => match answer {
                Answer::Granted { fence } => write!(f, "answered {request} {got} granted {fence}"),
                Answer::Refused { held, until } => {
                    write!(f, "answered {request} {got} refused {held} {until}")
                }
            },
            Self::Leaves { waiter, sent } => write!(f, "leaves {waiter} {sent}"),
            Self::ServerSuffers { at } => write!(f, "server-suffers {at}"),
            Self::ServersAreBack { at } => write!(f, "servers-are-back {at}"),
            Self::Operations(count) => write!(f, "operations {count}"),
        }
    }
}

impl FromStr for Event {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<_> = line.split(' ').collect();
        Ok(match *words {
            ["granted", key, lease, of, fence, sent, got] => Self::Granted {
                key: key.to_owned(),
                lease: lease.to_owned(),
                claim: of.parse::<u32>()?.into(),
                fence: fence.parse()?,
                sent: sent.parse()?,
                got: got.parse()?,
            },
            ["ended", lease, last] => Self::Ended {
                lease: lease.to_owned(),
                last: last.parse()?,
            },
            ["held", key, fences, sent, got] => Self::Held {
                key: key.to_owned(),
                // A broken store may say that nobody holds it.
                fences: fences
                    .split_terminator(',')
                    .map(str::parse)
                    .collect::<Result<_, _>>()?,
                sent: sent.parse()?,
                got: got.parse()?,
            },
            ["released", key, fence, got] => Self::Released {
                key: key.to_owned(),
                fence: fence.parse()?,
                got: got.parse()?,
            },
            ["refused", key, fence] => Self::Refused {
                key: key.to_owned(),
                fence: fence.parse()?,
            },
            ["permit", limiter, sent, got] => Self::Permit {
                limiter: limiter.to_owned(),
                sent: sent.parse()?,
                got: got.parse()?,
            },
            ["releases-at-risk", from, to, ttl] => Self::ReleasesAtRisk {
                from: from.parse()?,
                to: to.parse()?,
                ttl: ttl.parse()?,
            },
            [
                "asked",
                request,
                key,
                lease,
                waiter,
                of,
                overtakes,
                keeps,
                sent,
            ] => Self::Asked {
                request: request.parse()?,
                key: key.to_owned(),
                lease: lease.to_owned(),
                waiter: (waiter != NOBODY).then(|| waiter.to_owned()),
                claim: of.parse::<u32>()?.into(),
                overtakes: overtakes.parse()?,
                keeps: keeps.parse()?,
                sent: sent.parse()?,
            },
            ["answered", request, got, "granted", fence] => Self::Answered {
                request: request.parse()?,
                answer: Answer::Granted {
                    fence: fence.parse()?,
                },
                got: got.parse()?,
            },
            ["answered", request, got, "refused", held, until] => Self::Answered {
                request: request.parse()?,
                answer: Answer::Refused {
                    held: held.parse()?,
                    until: until.parse()?,
                },
                got: got.parse()?,
            },
            ["leaves", waiter, sent] => Self::Leaves {
                waiter: waiter.to_owned(),
                sent: sent.parse()?,
            },
            ["server-suffers", at] => Self::ServerSuffers { at: at.parse()? },
            ["servers-are-back", at] => Self::ServersAreBack { at: at.parse()? },
            ["operations", count] => Self::Operations(count.parse()?),
            _ => bail!("no event: {line:?}"),
        })
    }
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

#[test]
fn an_event_reads_back_what_it_writes() {
    for event in [
        Event::Granted {
            key: "x1".to_owned(),
            lease: "a".to_owned(),
            claim: Claim::OneOf(3),
            fence: 7,
            sent: 1,
            got: 2,
        },
        Event::Ended {
            lease: "a".to_owned(),
            last: 3,
        },
        Event::Held {
            key: "x1".to_owned(),
            fences: vec![7, 8],
            sent: 1,
            got: 2,
        },
        Event::Released {
            key: "x1".to_owned(),
            fence: 7,
            got: 2,
        },
        Event::Refused {
            key: "x1".to_owned(),
            fence: 7,
        },
        Event::Permit {
            limiter: "y".to_owned(),
            sent: 1,
            got: 2,
        },
        Event::ReleasesAtRisk {
            from: 1,
            to: 2,
            ttl: 3,
        },
        Event::Asked {
            request: 9,
            key: "x1".to_owned(),
            lease: "a".to_owned(),
            waiter: None,
            claim: Claim::All,
            overtakes: false,
            keeps: true,
            sent: 1,
        },
        Event::Answered {
            request: 9,
            answer: Answer::Granted { fence: 7 },
            got: 2,
        },
        Event::Answered {
            request: 9,
            answer: Answer::Refused { held: 1, until: 3 },
            got: 2,
        },
        Event::Leaves {
            waiter: "w".to_owned(),
            sent: 1,
        },
        Event::ServerSuffers { at: 1 },
        Event::ServersAreBack { at: 2 },
        Event::Operations(5),
    ] {
        assert_eq!(event.to_string().parse::<Event>().unwrap(), event);
    }
}
