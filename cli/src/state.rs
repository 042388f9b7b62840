//! Locks as rows and as JSON.

use chrono::{DateTime, Datelike, SecondsFormat, Utc};
use comfy_table::{Cell, Color, Table, presets};
use leasehold::{Holder, LockState, Mode, Place, jobs::Done};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use super::{columns, text};

/// A lease that ends within this time is shown in another colour: either a renewal was missed, or nobody renews it.
const SOON: std::time::Duration = std::time::Duration::from_secs(3);

/// A table is fitted only to terminals with at least this many columns.
const NARROW: u16 = 60;

/// The columns of a table.
pub const HEADER: [&str; 7] = [
    "KEY",
    "MODE",
    "HOLDER",
    "SINCE",
    "EXPIRES IN",
    "FENCE",
    "NOTE",
];
/// To which width each column may be cut. The mode of a process that waits begins with its number, of up to 100. A fence
/// that is cut is of no use.
pub const LEAST: [usize; 7] = [8, 13, 8, usize::MAX, usize::MAX, usize::MAX, 8];

/// A row of a table, by its cells.
pub struct Row {
    pub cells: [String; 7],
    pub look: Look,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Plain,
    /// The lease needs attention.
    Warned,
    /// No lease.
    Grey,
}

/// A table of locks, a row for each holder. Its rows are as wide as they have to be, and are cut to the width of a
/// terminal.
pub fn table(locks: &[LockState]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(HEADER);
    // `out::line` removes the colours if standard output does not show them.
    table.enforce_styling();
    let rows: Vec<Row> = locks.iter().flat_map(rows).collect();
    let natural = widths(&rows);
    let (mut widths, mut padding) = (natural, PADDING);
    // If the width is unknown or small, the terminal breaks the lines better than the table does.
    if let Some(columns) = table.width().filter(|columns| *columns >= NARROW) {
        let left = |padding: u16| {
            let between = HEADER.len() * usize::from(padding);
            usize::from(columns).saturating_sub(between)
        };
        if natural.iter().sum::<usize>() > left(padding) {
            padding = NARROW_PADDING;
            widths = columns::fit(natural, LEAST, left(padding));
        }
    }
    for row in rows {
        let cut = |(text, width): (&String, _)| columns::cut(text, width).into_owned();
        let cells = row.cells.iter().zip(widths).map(cut).enumerate();
        table.add_row(cells.map(|(column, text)| match row.look {
            Look::Grey => Cell::new(text).fg(Color::DarkGrey),
            Look::Warned if HEADER.get(column) == Some(&"EXPIRES IN") => {
                Cell::new(text).fg(Color::Yellow)
            }
            Look::Warned | Look::Plain => Cell::new(text),
        }));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, padding));
    }
    table.trim_fmt()
}

/// How wide the columns of these rows have to be.
pub fn widths<'a>(rows: impl IntoIterator<Item = &'a Row>) -> [usize; 7] {
    let header = HEADER.map(|name| name.width());
    rows.into_iter().fold(header, |mut widest, row| {
        for (widest, cell) in widest.iter_mut().zip(&row.cells) {
            *widest = (*widest).max(cell.width());
        }
        widest
    })
}

/// The space after each cell. A program can split a line where there are two spaces.
pub const PADDING: u16 = 2;
/// The same in a table that is cut.
pub const NARROW_PADDING: u16 = 1;

/// The rows of a lock: its holders, its newest done tick, and the processes that wait.
fn rows(lock: &LockState) -> Vec<Row> {
    let mut rows = Vec::new();
    if lock.holders.is_empty() {
        let fence = lock.fence.to_string();
        rows.push(grey(lock, "free".to_owned(), ["", "", &fence]));
    }
    rows.extend(lock.holders.iter().map(|holder| row(lock, holder)));
    rows.extend(lock.done.as_ref().map(|done| done_row(lock, done)));
    let waiting = (1..).zip(&lock.waiters);
    rows.extend(waiting.map(|(number, place)| waiting_row(lock, place, number)));
    rows
}

/// The row for a holder.
pub fn row(lock: &LockState, holder: &Holder) -> Row {
    let left = between(lock.now, holder.expires_at);
    let is_from_ahead = holder.is_from_a_clock_ahead(lock.now);
    let expires_in = match text::short(left) {
        left if is_from_ahead => format!("{left}, clock was ahead"),
        left => left,
    };
    Row {
        cells: [
            text::visible(lock.key.as_str()).into_owned(),
            mode(holder.mode, holder.permits),
            text::visible(&holder.owner).into_owned(),
            ago(holder.acquired_at, lock.now),
            expires_in,
            holder.fence.to_string(),
            text::visible(holder.note.as_deref().unwrap_or_default()).into_owned(),
        ],
        look: match left < SOON || is_from_ahead {
            true => Look::Warned,
            false => Look::Plain,
        },
    }
}

/// The row for the newest done tick.
fn done_row(lock: &LockState, done: &Done) -> Row {
    let mode = format!("done: {}", done.tick);
    grey(lock, mode, [&done.by, &ago(done.at, lock.now), ""])
}

/// A row that is about no lease, with its owner, its time and its fence.
fn grey(lock: &LockState, mode: String, of: [&str; 3]) -> Row {
    let [owner, since, fence] = of.map(|it| text::visible(it).into_owned());
    let key = text::visible(lock.key.as_str()).into_owned();
    let [expires_in, note] = [const { String::new() }; 2];
    Row {
        cells: [key, mode, owner, since, expires_in, fence, note],
        look: Look::Grey,
    }
}

fn ago(from: DateTime<Utc>, now: DateTime<Utc>) -> String {
    format!("{} ago", text::short(between(from, now)))
}

/// A line for each key that is held until a time that no ttl explains: what happened, and what to do.
pub fn from_a_clock_ahead(locks: &[LockState]) -> impl Iterator<Item = String> {
    let held = locks
        .iter()
        .filter_map(|lock| Some((lock, lock.from_a_clock_ahead().next()?)));
    held.map(|(lock, holder)| {
        let key = text::visible(lock.key.as_str());
        let until = holder.expires_at.to_rfc3339_opts(SecondsFormat::Secs, true);
        format!(
            "{key} is held until {until}, a time that no ttl explains: the server's clock was ahead. If its holder ({}) \
             is dead: leasehold evict {key}",
            text::visible(&holder.owner)
        )
    })
}

/// The newest done tick as a line.
pub fn done_line(done: &Done) -> String {
    let kept = match done.until.year() {
        ..=9999 => {
            let until = done.until.to_rfc3339_opts(SecondsFormat::Secs, true);
            format!("until {until}")
        }
        _ => "for ever".to_owned(),
    };
    let done = done.to_string();
    format!("{}, and is remembered {kept}", text::visible(&done))
}

/// The row for the process that is at this number among those that wait for the key.
pub fn waiting_row(lock: &LockState, place: &Place, number: usize) -> Row {
    let (all, mode) = (lock.waiters.len(), mode(place.mode, place.permits));
    let mode = format!("{number} of {all} waiting: {mode}");
    grey(lock, mode, [&place.owner, &ago(place.since, lock.now), ""])
}

fn mode(mode: Mode, permits: i64) -> String {
    match mode {
        Mode::Permits => format!("permits {permits}"),
        mode => mode.as_str().to_owned(),
    }
}

/// A lock as JSON: times in RFC 3339, on the server's clock.
pub fn json(lock: &LockState) -> Value {
    json!({
        "key": lock.key.as_str(),
        "held": !lock.is_free(),
        "fence": lock.fence.get(),
        "now": time(lock.now),
        "holders": lock.holders.iter().map(|it| holder(it, lock.now)).collect::<Vec<_>>(),
        "done": lock.done.as_ref().map(done),
        "waiters": lock.waiters.iter().map(|it| waiter(it, lock.now)).collect::<Vec<_>>(),
    })
}

fn done(done: &Done) -> Value {
    json!({
        "tick": done.tick.to_string(),
        "kind": done.tick.kind().as_str(),
        "at": time(done.at),
        "by": &*done.by,
        "lease": done.lease.to_string(),
        // RFC 3339 has years of four digits. A later time means for ever.
        "until": (done.until.year() <= 9999).then(|| time(done.until)),
    })
}

fn waiter(place: &Place, now: DateTime<Utc>) -> Value {
    json!({
        "owner": &*place.owner,
        "mode": place.mode.as_str(),
        "permits": place.permits,
        "since": time(place.since),
        "waits_ms": (now - place.since).num_milliseconds(),
    })
}

fn holder(holder: &Holder, now: DateTime<Utc>) -> Value {
    json!({
        "lease": holder.lease.to_string(),
        "owner": &*holder.owner,
        "mode": holder.mode.as_str(),
        "permits": holder.permits,
        "fence": holder.fence.get(),
        "acquired_at": time(holder.acquired_at),
        "expires_at": time(holder.expires_at),
        "expires_in_ms": (holder.expires_at - now).num_milliseconds(),
        "note": holder.note.as_deref(),
        "clock_was_ahead": holder.is_from_a_clock_ahead(now),
    })
}

fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

pub fn between(from: DateTime<Utc>, to: DateTime<Utc>) -> std::time::Duration {
    (to - from).to_std().unwrap_or_default()
}
