//! Tests that `docs/protocol/` shows the statements that the stores send.
//!
//! In a document each statement stands between two marks. The first mark has the kind and the name of the statement:
//!
//! ```text
//! <!-- statement: mongodb acquire -->
//! <!-- end -->
//! ```
//!
//! With `LEASEHOLD_WRITE_PROTOCOL=1` the tests write what is between the marks, instead of comparing it.
//!
//! The statements that every client needs are also there as templates: JSON that a program fills in. A text such as
//! `<KEY>` is a [hole](filled) in it.
//!
//! The pages are for people to read, so [`Tree`] prints short values on one line. With the output of
//! `serde_json::to_string_pretty`, which has one entry a line, the page for MongoDB had 3,369 lines instead of 1,343,
//! and a condition such as `{ $lt: ["$fence", "$$NOW"] }` took six.

use std::{fs, time::Duration};

use chrono::DateTime;
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    messages::{
        AcquireRequest, ConvertRequest, Filter, GiveBackRequest, ListRequest, PermitRequest,
        ReleaseRequest, RenewRequest, Turn,
    },
    model::{Fence, Key, LeaseId, PermitId, Quota, Tick},
};

const DOCUMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/protocol");
const WRITE: &str = "LEASEHOLD_WRITE_PROTOCOL";
const BEGIN: &str = "<!-- statement: ";
const END: &str = "<!-- end -->";
/// A longer value is written over several lines.
const WIDTH: usize = 100;

/// Held while a test reads or writes a document, because two tests use the same one.
static FILE: Mutex<()> = Mutex::new(());

pub(crate) const TTL: Duration = Duration::from_secs(30);
pub(crate) const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn key() -> Key {
    Key::new("report:42").unwrap()
}

pub(crate) fn lease() -> LeaseId {
    LeaseId::parse("11111111-1111-4111-8111-111111111111").unwrap()
}

/// The placeholder of a minimum hold.
pub(crate) fn other_lease() -> LeaseId {
    LeaseId::parse("22222222-2222-4222-8222-222222222222").unwrap()
}

/// The acquires that a document shows, with their names.
pub(crate) fn acquires() -> [(&'static str, AcquireRequest); 5] {
    let ask = || AcquireRequest::exclusive(key(), lease(), "worker-3".into(), TTL);
    [
        ("acquire", ask().note("nightly run")),
        ("acquire shared", ask().shared()),
        ("acquire permits", ask().permits(2, 4).unwrap()),
        ("acquire reentrant", ask().reentrant()),
        ("acquire take over", ask().take_over([other_lease()])),
    ]
}

/// An acquire of a process that waits.
pub(crate) fn in_turn() -> AcquireRequest {
    let turn = Turn::in_turn(waiter(), Duration::from_millis(1_500));
    AcquireRequest::exclusive(key(), lease(), "worker-3".into(), TTL).turn(turn)
}

pub(crate) fn waiter() -> LeaseId {
    LeaseId::parse("44444444-4444-4444-8444-444444444444").unwrap()
}

pub(crate) fn renewal() -> RenewRequest {
    RenewRequest::new(key(), lease(), TTL)
}

pub(crate) fn conversions() -> [(&'static str, ConvertRequest); 2] {
    [
        ("upgrade", ConvertRequest::upgrade(key(), lease())),
        ("downgrade", ConvertRequest::downgrade(key(), lease())),
    ]
    .map(|(name, request)| (name, request.of_fence(Fence::new(1_806_336_000_000_000))))
}

pub(crate) fn release() -> ReleaseRequest {
    ReleaseRequest::new(key(), lease())
}

pub(crate) fn release_with_a_minimum_hold() -> ReleaseRequest {
    release().min_hold(Duration::from_secs(60), other_lease())
}

/// The tick of a day.
fn tick() -> Tick {
    "2026-11-24".parse().unwrap()
}

/// An acquire for a tick.
pub(crate) fn acquire_for_a_tick() -> AcquireRequest {
    AcquireRequest::exclusive(key(), lease(), "worker-3".into(), TTL).tick(tick())
}

/// A release that writes that its tick is done, for 30 days.
pub(crate) fn release_with_a_tick() -> ReleaseRequest {
    release().done(tick(), Duration::from_secs(30 * 24 * 60 * 60))
}

/// A request for the second page of the locks of an owner.
pub(crate) fn page() -> ListRequest {
    let filter = Filter::new().owner("worker-3").prefix("report:");
    ListRequest::new(filter, Some(key()), 100)
}

pub(crate) fn permits() -> [(&'static str, PermitRequest); 2] {
    let fixed = Quota::fixed(10, Duration::from_secs(1)).unwrap();
    let id = PermitId::parse("33333333-3333-4333-8333-333333333333").unwrap();
    let ask = |quota| PermitRequest::new(key(), id, quota, 1);
    [
        ("permit", ask(fixed)),
        ("permit smooth", ask(fixed.smooth(3).unwrap())),
    ]
}

pub(crate) fn given_back() -> [(&'static str, GiveBackRequest); 2] {
    let give_back = |name, request: &PermitRequest| {
        let granted_at = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        let key = request.key.clone();
        (
            name,
            GiveBackRequest::new(key, request.quota, 1, granted_at),
        )
    };
    let [(_, fixed), (_, smooth)] = permits();
    [
        give_back("give back", &fixed),
        give_back("give back smooth", &smooth),
    ]
}

/// A value of BSON or JSON, to be written with line breaks.
pub(crate) enum Tree {
    Leaf(String),
    List(Vec<Tree>),
    Fields(Vec<(String, Tree)>),
}

impl Tree {
    /// Writes the value on one line if it is short enough after this indent, otherwise one line for each entry. A value
    /// with a single entry adds no line.
    pub(crate) fn written(&self, indent: usize) -> String {
        let line = self.line();
        if indent + line.len() <= WIDTH {
            return line;
        }
        let inner = indent + 2;
        let (open, entries, close) = match self {
            Self::Leaf(text) => return text.clone(),
            Self::List(values) if values.len() == 1 => {
                return format!("[{}]", values[0].written(indent));
            }
            Self::Fields(fields) if fields.len() == 1 => {
                let (name, value) = &fields[0];
                return format!("{{ {name}: {} }}", value.written(indent));
            }
            Self::List(values) => {
                let entries = values.iter().map(|value| value.written(inner));
                ('[', entries.collect::<Vec<_>>(), ']')
            }
            Self::Fields(fields) => {
                let entries = fields
                    .iter()
                    .map(|(name, value)| format!("{name}: {}", value.written(inner)));
                ('{', entries.collect(), '}')
            }
        };
        let (blank, last) = (" ".repeat(inner), " ".repeat(indent));
        let entries = entries.join(&format!(",\n{blank}"));
        format!("{open}\n{blank}{entries}\n{last}{close}")
    }

    fn line(&self) -> String {
        match self {
            Self::Leaf(text) => text.clone(),
            Self::List(values) => {
                let values: Vec<_> = values.iter().map(Self::line).collect();
                format!("[{}]", values.join(", "))
            }
            Self::Fields(fields) if fields.is_empty() => "{}".to_owned(),
            Self::Fields(fields) => {
                let fields = fields.iter();
                let fields = fields.map(|(name, value)| format!("{name}: {}", value.line()));
                format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// A statement, as it stands on its page.
pub(crate) struct PageStatement {
    name: String,
    text: String,
}

impl PageStatement {
    pub(crate) fn new(name: impl Into<String>, text: String) -> Self {
        Self {
            name: name.into(),
            text,
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// A template with these values in the place of its holes: each text that is the name of a hole, between quotation marks,
/// is replaced by the JSON of its value.
///
/// # Panics
///
/// If a hole has no value.
pub(crate) fn filled(template: &str, values: &[(&str, Value)]) -> String {
    let fill = |text: String, (hole, value): &(&str, Value)| {
        text.replace(&format!("\"<{hole}>\""), &value.to_string())
    };
    let text = values.iter().fold(template.to_owned(), fill);
    assert!(!text.contains("\"<"), "a hole is left in {text}");
    text
}

/// Panics unless a document has exactly these statements of a kind, each under its name.
pub(crate) fn compare(document: &str, kind: &str, language: &str, statements: &[PageStatement]) {
    let _file = FILE.lock();
    let path = format!("{DOCUMENTS}/{document}");
    let before = fs::read_to_string(&path).unwrap();
    let mut after = before.clone();
    for statement in statements {
        let mark = format!("{BEGIN}{kind} {} -->\n", statement.name);
        let start = after.find(&mark).map(|at| at + mark.len());
        let start = start.unwrap_or_else(|| panic!("{path} has no mark {mark}"));
        let length = after[start..].find(END);
        let length = length.unwrap_or_else(|| panic!("{mark} has no end"));
        let block = format!("```{language}\n{}\n```\n", statement.text);
        after.replace_range(start..start + length, &block);
    }
    let marks = before.matches(&format!("{BEGIN}{kind} ")).count();
    assert_eq!(marks, statements.len(), "{path} has marks of nothing");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, after).unwrap();
        return;
    }
    for (old, new) in before.lines().zip(after.lines()) {
        assert_eq!(old, new, "{path} is stale: {WRITE}=1 writes it anew");
    }
    assert_eq!(before.len(), after.len(), "{path} is stale");
}
