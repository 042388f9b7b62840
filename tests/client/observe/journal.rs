//! The spans and events of a test's own thread.

use std::{
    io,
    sync::{Arc, Once},
};

use parking_lot::Mutex;
use serde_json::Value;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::{MakeWriter, format::FmtSpan};

/// Records spans and events as JSON.
pub struct Journal {
    text: Text,
    _default: DefaultGuard,
}

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Text {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Makes `tracing` ask the subscriber of each thread.
///
/// While one thread has the only subscriber of the process, `tracing` asks the default subscriber of the thread that
/// comes to an event first. If that is the thread of another test, it has no subscriber, and the event would be off for
/// all threads. With a subscriber for all threads there are always two, so `tracing` asks the subscribers themselves.
pub fn ask_each_thread() {
    static FOR_ALL_THREADS: Once = Once::new();
    FOR_ALL_THREADS.call_once(|| {
        tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap();
    });
}

impl Journal {
    pub fn new() -> Self {
        ask_each_thread();
        let text = Text::default();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(text.clone())
            .finish();
        Self {
            text,
            _default: tracing::subscriber::set_default(subscriber),
        }
    }

    /// The text that was recorded since the last call.
    pub fn text(&self) -> String {
        String::from_utf8(std::mem::take(&mut self.text.0.lock())).unwrap()
    }

    /// The entries of leasehold that were recorded since the last call.
    pub fn entries(&self) -> Vec<Value> {
        let text = self.text();
        let entries = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let own = |entry: &Value| entry["target"] == "leasehold";
        entries.filter(own).collect()
    }
}

/// The events with this message, among these entries.
pub fn events(entries: &[Value], message: &str) -> Vec<Value> {
    let said = |entry: &&Value| {
        let text = entry["fields"]["message"].as_str();
        text.is_some_and(|text| text.starts_with(message))
    };
    entries.iter().filter(said).cloned().collect()
}

/// The one event with this message.
pub fn event(entries: &[Value], message: &str) -> Value {
    let events = events(entries, message);
    assert_eq!(events.len(), 1, "{message}: {entries:#?}");
    events[0].clone()
}

/// The one span of this name that was closed, among these entries.
pub fn span(entries: &[Value], name: &str) -> Value {
    let closed = events(entries, "close");
    let mut spans = closed.iter().map(|entry| &entry["span"]);
    let found = spans.find(|span| span["name"] == name);
    found
        .unwrap_or_else(|| panic!("{name}: {entries:#?}"))
        .clone()
}

#[test]
fn what_another_thread_met_first_is_heard() {
    fn meet() {
        tracing::debug!(target: "leasehold", "met");
    }
    let journal = Journal::new();
    std::thread::spawn(meet).join().unwrap();
    meet();
    event(&journal.entries(), "met");
}
