//! Shortens what messages quote. A message of an error is one sentence of at most 300 characters, with its cause, but the
//! names that callers choose and the texts that servers send may be much longer.

use std::borrow::Cow;

/// The longest key, owner or other name in a message, in characters. The longest sentence has two of them.
const MAX_QUOTED: usize = 48;

/// A name as a message quotes it. Shortens it if it is very long.
pub(crate) fn quoted(name: &(impl AsRef<str> + ?Sized)) -> Cow<'_, str> {
    brief(name.as_ref(), MAX_QUOTED)
}

/// The first characters of a text that has more than `most`, otherwise all of it. A text that is cut ends with a whole
/// word, if it has several, and an ellipsis.
pub(crate) fn brief(text: &str, most: usize) -> Cow<'_, str> {
    if text.chars().nth(most).is_none() {
        return text.into();
    }
    let end = text.char_indices().nth(most.saturating_sub(1));
    let kept = end.and_then(|(end, _)| text.get(..end)).unwrap_or_default();
    let word = kept.rfind(' ').filter(|space| *space > kept.len() / 2);
    let kept = word.and_then(|space| kept.get(..space)).unwrap_or(kept);
    format!("{kept}…").into()
}

/// A text of at most `most` characters, in one line. If it is cut, its end after the last colon stays: that is the root
/// cause, or what to do.
pub(crate) fn sentence(text: &str, most: usize) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    let text = words.join(" ");
    let text = text.trim_end_matches([',', ':', ' ']);
    let is_long = text.chars().nth(most).is_some();
    let end = text
        .rsplit_once(": ")
        .map(|(start, end)| (start, end, end.chars().count()));
    match end {
        Some((start, end, length)) if is_long && length < most / 2 => {
            format!("{}: {end}", brief(start, most - length - 2))
        }
        _ => brief(text, most).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_text_the_beginning_is_shown() {
        assert_eq!(brief("äöü", 3), "äöü");
        assert_eq!(brief("äöü!", 3), "äö…");
        assert_eq!(brief("", 0), "");
        assert_eq!(brief("one two three", 12), "one two…");
        let key = "锁".repeat(170);
        assert_eq!(quoted(&key).chars().count(), MAX_QUOTED);
        assert_eq!(quoted("report:42"), "report:42");
    }

    #[test]
    fn a_sentence_is_one_line_and_keeps_its_end() {
        assert_eq!(sentence("one\n  two\tthree", 190), "one two three");
        for long in [
            "word ".repeat(10_000),
            "x".repeat(10_000),
            "锁".repeat(10_000),
        ] {
            let told = sentence(&long, 190);
            assert!(told.chars().count() <= 190 && told.ends_with('…'), "{told}");
        }
        let told = sentence(&format!("{}: set it to _none", "word ".repeat(100)), 190);
        assert!(told.chars().count() <= 190, "{told}");
        assert!(told.ends_with("…: set it to _none"), "{told}");
        let exact = "x".repeat(190);
        assert_eq!(sentence(&exact, 190), exact);
        assert!(sentence("", 190).is_empty());
    }
}
