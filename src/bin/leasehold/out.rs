//! What is printed.

use std::io::{self, Write};

use anstream::AutoStream;
use serde_json::Value;

use super::exit::{Code, Failure};

/// A line, with colours where they are seen.
pub fn line(text: &str) -> Result<Code, Failure> {
    let mut out = AutoStream::auto(io::stdout().lock());
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(Code::Done)
}

/// JSON for people and programs.
pub fn json(value: &Value) -> Result<Code, Failure> {
    line(&format!("{value:#}"))
}

/// JSON in one line.
pub fn json_line(value: &Value) -> Result<Code, Failure> {
    line(&value.to_string())
}

/// Bytes as they are.
pub fn raw(bytes: &[u8]) -> Result<Code, Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(Code::Done)
}

/// Whether colours are seen.
pub fn has_colours() -> bool {
    AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
}
