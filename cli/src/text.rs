//! Makes texts from the store safe for a terminal, and times readable for people.

use std::{borrow::Cow, time::Duration};

/// Escapes the characters of a key, an owner or a note that would move the cursor or break the line.
pub fn visible(text: &str) -> Cow<'_, str> {
    // Characters that change the direction of writing can hide text too.
    let harmful = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().map(|c| {
        if harmful(c) {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    });
    Cow::Owned(escaped.collect())
}

/// The longest name in a message, in characters.
const MAX_NAME: usize = 48;

/// A key as a message names it: safe for a terminal, and shortened if it is very long.
pub fn name(key: &str) -> Cow<'_, str> {
    let key = visible(key);
    if key.chars().nth(MAX_NAME).is_none() {
        return key;
    }
    let kept: String = key.chars().take(MAX_NAME - 1).collect();
    Cow::Owned(format!("{kept}…"))
}

/// Formats a time in its two largest units.
pub fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..10 => format!("{:.1}s", time.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m{:02}s", seconds % 60),
        3_600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_a_long_key_by_its_beginning() {
        assert_eq!(name("report:42"), "report:42");
        let long = "锁".repeat(170);
        let named = name(&long);
        assert_eq!(named.chars().count(), MAX_NAME);
        assert!(named.ends_with("锁…"));
    }

    #[test]
    fn what_moves_a_cursor_is_shown_and_not_done() {
        assert_eq!(visible("report:42"), "report:42");
        assert_eq!(visible("größer 日本"), "größer 日本");
        assert_eq!(visible("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(visible("gnp.\u{202e}exe"), "gnp.\\u{202e}exe");
    }

    #[test]
    fn a_time_has_two_units() {
        let of = |millis| short(Duration::from_millis(millis));
        assert_eq!(of(1_250), "1.2s");
        assert_eq!(of(59_999), "59s");
        assert_eq!(of(61_000), "1m01s");
        assert_eq!(of(3_600_000 + 5 * 60_000), "1h05m");
        assert_eq!(of(26 * 3_600_000), "1d02h");
    }
}
