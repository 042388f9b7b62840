//! What is printed.

use std::io::{self, Write};

use anstream::AutoStream;
use serde_json::Value;

use super::{
    exit::{Code, Failure},
    text::visible,
};

/// A line, with colours where they are seen.
pub fn line(text: &str) -> Result<Code, Failure> {
    let mut out = AutoStream::auto(io::stdout().lock());
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(Code::Done)
}

/// JSON for people and programs.
pub fn json(value: &Value) -> Result<Code, Failure> {
    raw(format!("{}\n", escaped(&format!("{value:#}"))).as_bytes())
}

/// JSON in one line.
pub fn json_line(value: &Value) -> Result<Code, Failure> {
    raw(format!("{}\n", escaped(&value.to_string())).as_bytes())
}

/// JSON without what a terminal obeys although JSON takes it as it is; it is in texts only.
fn escaped(json: &str) -> String {
    let escape = |c: char| match c {
        '\u{7f}'..='\u{9f}' => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    json.chars().map(escape).collect()
}

/// A line about what goes on. Nobody may be there to read it.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "leasehold: {}", visible(text));
}

/// Bytes as they are.
pub fn raw(bytes: &[u8]) -> Result<Code, Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(Code::Done)
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
