//! Locks as rows and as JSON.

use chrono::{DateTime, Datelike, SecondsFormat, Utc};
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use leasehold::{Holder, LockState, Mode, Place, jobs::Done};
use serde_json::{Value, json};

use super::text;

/// A lease that ends within this time is shown in another colour: either a renewal was missed, or nobody renews it.
const SOON: std::time::Duration = std::time::Duration::from_secs(3);

/// A table is fitted only to terminals with at least this many columns.
const NARROW: u16 = 60;

/// A table of locks, a row for each holder.
pub fn table(locks: &[LockState]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "KEY",
        "MODE",
        "HOLDER",
        "SINCE",
        "EXPIRES IN",
        "FENCE",
        "NOTE",
    ]);
    // If the width is unknown or small, the terminal breaks the lines better than the table does.
    if table.width().is_some_and(|width| width >= NARROW) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    // `out::line` removes the colours if standard output does not show them.
    table.enforce_styling();
    for lock in locks {
        if lock.holders.is_empty() {
            let (key, fence) = (text::visible(lock.key.as_str()), lock.fence.to_string());
            let row = [&*key, "free", "", "", "", &fence, ""];
            table.add_row(row.map(|cell| Cell::new(cell).fg(Color::DarkGrey)));
        }
        for holder in &lock.holders {
            table.add_row(row(lock, holder));
        }
        if let Some(done) = &lock.done {
            table.add_row(done_row(lock, done));
        }
        for (number, place) in (1..).zip(&lock.waiters) {
            table.add_row(waiting(lock, place, number));
        }
    }
    table.trim_fmt()
}

fn row(lock: &LockState, holder: &Holder) -> Vec<Cell> {
    let left = between(lock.now, holder.expires_at);
    let is_from_ahead = holder.is_from_a_clock_ahead(lock.now);
    let expires_in = Cell::new(if is_from_ahead {
        format!("{}, clock was ahead", text::short(left))
    } else {
        text::short(left)
    });
    vec![
        Cell::new(text::visible(lock.key.as_str())),
        Cell::new(mode(holder.mode, holder.permits)),
        Cell::new(text::visible(&holder.owner)),
        Cell::new(format!(
            "{} ago",
            text::short(between(holder.acquired_at, lock.now))
        )),
        if left < SOON || is_from_ahead {
            expires_in.fg(Color::Yellow)
        } else {
            expires_in
        },
        Cell::new(holder.fence),
        Cell::new(text::visible(holder.note.as_deref().unwrap_or_default())),
    ]
}

/// The row for the newest done tick.
fn done_row(lock: &LockState, done: &Done) -> Vec<Cell> {
    let (key, by) = (text::visible(lock.key.as_str()), text::visible(&done.by));
    let mode = format!("done: {}", done.tick);
    let since = format!("{} ago", text::short(between(done.at, lock.now)));
    let row = [&*key, &mode, &*by, &since, "", "", ""];
    row.map(|cell| Cell::new(cell).fg(Color::DarkGrey)).into()
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
fn waiting(lock: &LockState, place: &Place, number: usize) -> Vec<Cell> {
    let (key, owner) = (
        text::visible(lock.key.as_str()),
        text::visible(&place.owner),
    );
    let (all, mode) = (lock.waiters.len(), mode(place.mode, place.permits));
    let mode = format!("waits, {number} of {all}: {mode}");
    let since = format!("{} ago", text::short(between(place.since, lock.now)));
    let row = [&*key, &mode, &*owner, &since, "", "", ""];
    row.map(|cell| Cell::new(cell).fg(Color::DarkGrey)).into()
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
