//! The judges by their names, and what they found.

use std::fmt;

/// Who judges, and so what must be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judge {
    /// Guards that say that they are live are compatible.
    Exclusion,
    /// A live guard is in the document of its key for at least as long.
    InDocument,
    /// The fences of exclusive grants rise in the order of the grants.
    Fences,
    /// A guard that is not live any more was told why.
    Told,
    /// The tasks of a client are granted a key in the order in which they asked.
    QueueOfProcess,
    /// A client is not granted a key before a client that has an earlier place.
    QueueOfProcesses,
    /// A task that waits is granted a key which no task has, within the time that the documents give.
    Sleeps,
    /// A document keeps no lease without a guard for long, if no task waits.
    Kept,
    /// A place belongs to a client that waits.
    Place,
    /// A limiter grants no more than its quota, and each permit to one caller.
    Quota,
    /// A tick that is done does not run again.
    Tick,
    /// No call takes longer than it may.
    Bound,
    /// No client repeats requests without a pause.
    Flood,
    /// No request is dropped while it is under way.
    Dropped,
    /// When all clients are closed, nothing is left.
    Leftover,
    /// Nothing panics but what the run panics on purpose.
    Panicked,
}

impl Judge {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Exclusion,
        Self::InDocument,
        Self::Fences,
        Self::Told,
        Self::QueueOfProcess,
        Self::QueueOfProcesses,
        Self::Sleeps,
        Self::Kept,
        Self::Place,
        Self::Quota,
        Self::Tick,
        Self::Bound,
        Self::Flood,
        Self::Dropped,
        Self::Leftover,
        Self::Panicked,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "Exclusion",
            Self::InDocument => "InDocument",
            Self::Fences => "Fences",
            Self::Told => "Told",
            Self::QueueOfProcess => "QueueOfProcess",
            Self::QueueOfProcesses => "QueueOfProcesses",
            Self::Sleeps => "Sleeps",
            Self::Kept => "Kept",
            Self::Place => "Place",
            Self::Quota => "Quota",
            Self::Tick => "Tick",
            Self::Bound => "Bound",
            Self::Flood => "Flood",
            Self::Dropped => "Dropped",
            Self::Leftover => "Leftover",
            Self::Panicked => "Panicked",
        }
    }
}

impl fmt::Display for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who found it.
    pub judge: Judge,
    /// What it is.
    pub text: String,
}

impl Violation {
    /// What a judge found.
    pub fn new(judge: Judge, text: String) -> Self {
        Self { judge, text }
    }
}
