//! The conversion of an event to a line of a file, and back.

use std::{
    fmt::{self, Display},
    str::FromStr,
};

use anyhow::{Result, bail};

use super::{Answer, Claim, Event};
use crate::documents::Content;

/// The word for the absence of a waiter.
const NOBODY: &str = "-";

impl Claim {
    /// The number of shares; 1 for all of a key.
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
            Self::Ended { lease, fence, last } => write!(f, "ended {lease} {fence} {last}"),
            Self::WentBack {
                key,
                lease,
                reason,
                at,
            } => write!(f, "went-back {key} {lease} {reason} {at}"),
            Self::Looked {
                asked,
                told,
                sent,
                got,
            } => {
                let (asked, told) = (asked.join(","), told.join(","));
                write!(f, "looked {asked} {told} {sent} {got}")
            }
            Self::RecallsTake { longest } => write!(f, "recalls-take {longest}"),
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
            Self::Began { tick, lease, at } => write!(f, "began {tick} {lease} {at}"),
            Self::TickDone { tick, got } => write!(f, "tick-done {tick} {got}"),
            Self::ToldDone {
                asked,
                done,
                lease,
                sent,
                got,
            } => write!(f, "told-done {asked} {done} {lease} {sent} {got}"),
            Self::DocumentRead {
                key,
                guarded,
                fence,
                content,
                got,
            } => {
                let Content {
                    number,
                    writer,
                    over,
                } = content;
                write!(
                    f,
                    "document-read {key} {guarded} {fence} {number} {writer} {over} {got}"
                )
            }
            Self::WriteAsked {
                key,
                guarded,
                fence,
                number,
                sent,
            } => write!(f, "write-asked {key} {guarded} {fence} {number} {sent}"),
            Self::WriteAnswered {
                key,
                guarded,
                fence,
                written,
                got,
            } => write!(f, "write-answered {key} {guarded} {fence} {written} {got}"),
            Self::Permit { limiter, sent, got } => write!(f, "permit {limiter} {sent} {got}"),
            Self::ReadsAtRisk { from, to } => write!(f, "reads-at-risk {from} {to}"),
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
                fences,
                sent,
            } => {
                let (waiter, of) = (waiter.as_deref().unwrap_or(NOBODY), claim.of());
                write!(
                    f,
                    "asked {request} {key} {lease} {waiter} {of} {overtakes} {fences} {sent}"
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
                Answer::Done => write!(f, "answered {request} {got} done"),
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
            ["ended", lease, fence, last] => Self::Ended {
                lease: lease.to_owned(),
                fence: fence.parse()?,
                last: last.parse()?,
            },
            ["went-back", key, lease, reason, at] => Self::WentBack {
                key: key.to_owned(),
                lease: lease.to_owned(),
                reason: reason.to_owned(),
                at: at.parse()?,
            },
            ["looked", asked, told, sent, got] => {
                let keys = |keys: &str| keys.split_terminator(',').map(str::to_owned).collect();
                Self::Looked {
                    asked: keys(asked),
                    told: keys(told),
                    sent: sent.parse()?,
                    got: got.parse()?,
                }
            }
            ["recalls-take", longest] => Self::RecallsTake {
                longest: longest.parse()?,
            },
            ["held", key, fences, sent, got] => Self::Held {
                key: key.to_owned(),
                // A broken store may say that the key is held but name no holder.
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
            ["began", tick, lease, at] => Self::Began {
                tick: tick.parse()?,
                lease: lease.to_owned(),
                at: at.parse()?,
            },
            ["tick-done", tick, got] => Self::TickDone {
                tick: tick.parse()?,
                got: got.parse()?,
            },
            ["told-done", asked, done, lease, sent, got] => Self::ToldDone {
                asked: asked.parse()?,
                done: done.parse()?,
                lease: lease.to_owned(),
                sent: sent.parse()?,
                got: got.parse()?,
            },
            [
                "document-read",
                key,
                guarded,
                fence,
                number,
                writer,
                over,
                got,
            ] => Self::DocumentRead {
                key: key.to_owned(),
                guarded: guarded.parse()?,
                fence: fence.parse()?,
                content: Content {
                    number: number.parse()?,
                    writer: writer.parse()?,
                    over: over.parse()?,
                },
                got: got.parse()?,
            },
            ["write-asked", key, guarded, fence, number, sent] => Self::WriteAsked {
                key: key.to_owned(),
                guarded: guarded.parse()?,
                fence: fence.parse()?,
                number: number.parse()?,
                sent: sent.parse()?,
            },
            ["write-answered", key, guarded, fence, written, got] => Self::WriteAnswered {
                key: key.to_owned(),
                guarded: guarded.parse()?,
                fence: fence.parse()?,
                written: written.parse()?,
                got: got.parse()?,
            },
            ["permit", limiter, sent, got] => Self::Permit {
                limiter: limiter.to_owned(),
                sent: sent.parse()?,
                got: got.parse()?,
            },
            ["reads-at-risk", from, to] => Self::ReadsAtRisk {
                from: from.parse()?,
                to: to.parse()?,
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
                fences,
                sent,
            ] => Self::Asked {
                request: request.parse()?,
                key: key.to_owned(),
                lease: lease.to_owned(),
                waiter: (waiter != NOBODY).then(|| waiter.to_owned()),
                claim: of.parse::<u32>()?.into(),
                overtakes: overtakes.parse()?,
                fences: fences.parse()?,
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
            ["answered", request, got, "done"] => Self::Answered {
                request: request.parse()?,
                answer: Answer::Done,
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
            fence: 7,
            last: 3,
        },
        Event::WentBack {
            key: "x1".to_owned(),
            lease: "a".to_owned(),
            reason: "waited_for".to_owned(),
            at: 4,
        },
        Event::Looked {
            asked: vec!["x1".to_owned(), "x2".to_owned()],
            told: Vec::new(),
            sent: 1,
            got: 2,
        },
        Event::RecallsTake { longest: 8 },
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
        Event::Began {
            tick: -7,
            lease: "a".to_owned(),
            at: 1,
        },
        Event::TickDone { tick: 7, got: 2 },
        Event::ToldDone {
            asked: 6,
            done: 7,
            lease: "a".to_owned(),
            sent: 1,
            got: 2,
        },
        Event::DocumentRead {
            key: "x1".to_owned(),
            guarded: true,
            fence: 7,
            content: Content {
                number: 3,
                writer: 6,
                over: 5,
            },
            got: 2,
        },
        Event::WriteAsked {
            key: "x1".to_owned(),
            guarded: false,
            fence: 7,
            number: 4,
            sent: 3,
        },
        Event::WriteAnswered {
            key: "x1".to_owned(),
            guarded: true,
            fence: 7,
            written: false,
            got: 4,
        },
        Event::Permit {
            limiter: "y".to_owned(),
            sent: 1,
            got: 2,
        },
        Event::ReadsAtRisk { from: 1, to: 2 },
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
            fences: 4_096,
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
        Event::Answered {
            request: 9,
            answer: Answer::Done,
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
