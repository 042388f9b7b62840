//! The judges by their names, and what they found.

use std::fmt;

/// Makes the judges, the list of all, and their names.
macro_rules! judges {
    ($($(#[$what:meta])* $name:ident,)*) => {
        /// Who judges, and so what must be true.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Judge {
            $($(#[$what])* $name,)*
        }

        impl Judge {
            /// All of them.
            pub const ALL: [Self; 16] = [$(Self::$name,)*];

            /// The name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

judges! {
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
