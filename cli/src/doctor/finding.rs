//! What the doctor finds, for people and for programs.

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grade {
    Good,
    /// It works, with a limit that the user should know of.
    Mind,
    Bad,
}

pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) grade: Grade,
    pub(super) text: String,
    /// The same for programs.
    pub(super) value: Value,
}

impl Finding {
    pub(super) fn new(what: &'static str, grade: Grade, text: impl Into<String>) -> Self {
        let (text, value) = (text.into(), Value::Null);
        Self {
            what,
            grade,
            text,
            value,
        }
    }

    pub(super) fn with(mut self, value: Value) -> Self {
        self.value = value;
        self
    }
}

pub(super) fn as_json(finding: &Finding) -> Value {
    let grade = match finding.grade {
        Grade::Good => "good",
        Grade::Mind => "mind",
        Grade::Bad => "bad",
    };
    json!({ "what": finding.what, "grade": grade, "text": finding.text, "value": finding.value })
}

pub(super) fn as_line(finding: &Finding) -> String {
    let (colour, mark) = match finding.grade {
        Grade::Good => (AnsiColor::Green, "ok  "),
        Grade::Mind => (AnsiColor::Yellow, "mind"),
        Grade::Bad => (AnsiColor::Red, "BAD "),
    };
    let style = Style::new().fg_color(Some(colour.into()));
    format!(
        "{style}{mark}{style:#}  {:<10} {}",
        finding.what, finding.text
    )
}
