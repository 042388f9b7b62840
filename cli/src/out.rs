//! Output to the terminal, and to pipes.

use std::io::{self, Write};

use anstream::AutoStream;
use serde_json::Value;

use super::{
    exit::{Code, Failure},
    text::visible,
};

/// Prints a line, with colours if standard output is a terminal that shows them.
pub fn line(text: &str) -> Result<Code, Failure> {
    unless_closed(whole_line(text))
}

/// Prints a line for `watch`, whose output has no end. Fails if the reader has closed the pipe.
pub fn endless_line(text: &str) -> Result<Code, Failure> {
    whole_line(text)?;
    Ok(Code::Done)
}

/// Prints a line. Fails if the line cannot be written, also if the reader has closed the pipe.
pub fn whole_line(text: &str) -> io::Result<()> {
    let mut out = AutoStream::auto(io::stdout().lock());
    writeln!(out, "{text}")?;
    out.flush()
}

/// A reader that has closed the pipe, as `head` does, has seen enough. That changes no exit code.
fn unless_closed(written: io::Result<()>) -> Result<Code, Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(Code::Done),
    }
}

/// Prints JSON over several lines.
pub fn json(value: &Value) -> Result<Code, Failure> {
    raw(format!("{}\n", escaped(&format!("{value:#}"))).as_bytes())
}

/// Prints JSON in one line for `watch`. Fails if the reader has closed the pipe.
pub fn endless_json_line(value: &Value) -> Result<Code, Failure> {
    write_raw(format!("{}\n", escaped(&value.to_string())).as_bytes())?;
    Ok(Code::Done)
}

/// Escapes the control characters that JSON allows in texts, because a terminal may obey them.
fn escaped(json: &str) -> String {
    let escape = |c: char| match c {
        '\u{7f}'..='\u{9f}' => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    json.chars().map(escape).collect()
}

/// Prints a message to standard error. A failure is ignored: standard error may be closed.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "leasehold: {}", visible(text));
}

/// Prints bytes as they are.
pub fn raw(bytes: &[u8]) -> Result<Code, Failure> {
    unless_closed(write_raw(bytes))
}

fn write_raw(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_without_what_a_terminal_obeys() {
        let value = serde_json::json!({ "key": "a\u{7f}b\u{9b}c\u{1b}d\n größer" });
        let text = escaped(&value.to_string());
        assert!(!text.contains(char::is_control), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
