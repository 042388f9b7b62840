//! The judges, and what they found.

use std::fmt;

use clap::ValueEnum;

/// Who judges, and so what must be true. For each judge something can be made wrong on purpose, which it must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Judge {
    /// Guards that say that they are live are compatible. Wrong: the store forgets who has a key.
    Exclusion,
    /// A live guard is in the document of its key for at least as long. Wrong: the store renews no lease, and says that
    /// it does.
    InDocument,
    /// The fences of exclusive grants rise in the order of the grants. Wrong: each grant has the same fence.
    Fences,
    /// A guard that is not live any more was told why. Wrong: its task never hears of it.
    Told,
    /// The tasks of a client are granted a key in the order in which they asked. Wrong: a task that should wait in turn
    /// goes to the front.
    QueueOfProcess,
    /// A client is not granted a key before a client that has an earlier place. Wrong: the store forgets the places.
    QueueOfProcesses,
    /// A task that waits is granted a key after so many turns of each other client as its own client has. Wrong: the store
    /// forgets the places.
    LongestWait,
    /// A task that waits is granted a key which no task has, within the time that the documents give. Wrong: the store
    /// says of each key that a stranger has it.
    Sleeps,
    /// A document keeps no lease without a guard for long, if no task waits. Wrong: the store releases no lease, and says
    /// that it does.
    Kept,
    /// A place belongs to a client that waits. Wrong: the store lets places count for a minute, and gives none up.
    Place,
    /// A limiter grants no more than its quota, and each permit to one caller. Wrong: the store counts no permit.
    Quota,
    /// A tick that is done does not run again. Wrong: the store forgets which one is done.
    Tick,
    /// No call takes longer than it may. Wrong: a call may take a millisecond.
    Bound,
    /// No client repeats requests without a pause. Wrong: a task asks again and again.
    Flood,
    /// No request is dropped while it is under way. Wrong: some requests are forgotten before their answers are noted.
    Dropped,
    /// When all clients are closed, nothing is left. Wrong: a task goes on.
    Leftover,
    /// Nothing panics but what the run panics on purpose. Wrong: work panics in another way.
    Panicked,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who found it.
    pub judge: Judge,
    /// What it is.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.judge, self.text)
    }
}
