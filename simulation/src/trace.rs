//! What happens in a run, a line for each event: when, who, what.

use std::fmt;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The world: what happens to clients and to the server.
    World,
    /// The server.
    Server,
    /// A client.
    Client(usize),
    /// A task of a client.
    Task(usize, usize),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::World => "world".to_owned(),
            Self::Server => "server".to_owned(),
            Self::Client(client) => format!("client {client}"),
            Self::Task(client, task) => format!("client {client} task {task}"),
        };
        f.pad(&text)
    }
}

/// The events of a run. Without lines it costs nothing.
#[derive(Debug, Default)]
pub struct Trace {
    lines: Option<Mutex<Vec<String>>>,
    began: Mutex<Option<Instant>>,
}

impl Trace {
    /// A trace that keeps its lines, or does not.
    pub fn new(is_kept: bool) -> Self {
        Self {
            lines: is_kept.then(Mutex::default),
            began: Mutex::default(),
        }
    }

    /// Counts the times from this one on.
    pub fn begin(&self, at: Instant) {
        *self.began.lock() = Some(at);
    }

    /// Adds a line.
    pub fn say(&self, who: Who, what: impl FnOnce() -> String) {
        if let Some(lines) = &self.lines {
            let began = self.began.lock().unwrap_or_else(Instant::now);
            let at = began.elapsed().as_secs_f64();
            lines
                .lock()
                .push(format!("{at:9.3} s  {who:<16} {}", what()));
        }
    }

    /// Takes the lines.
    pub fn take(&self) -> Vec<String> {
        let lines = self.lines.as_ref();
        lines.map_or_else(Vec::new, |lines| std::mem::take(&mut lines.lock()))
    }
}
