//! The parts of a drawing: a lane for each document and for each process.

use std::ops::Range;

use super::{Run, canvas::Font, theme::Colours, theme::Theme};

/// How much of a run is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Detail {
    /// The events, for the first screen of the README.
    Brief,
    /// The events, and what A knows of its lease at which time.
    Full,
}

pub(super) struct Lane {
    pub(super) name: &'static str,
    /// Where the lane is stored, if it is a document.
    pub(super) place: &'static str,
    pub(super) flags: Vec<Flag>,
    pub(super) writes: Vec<Write>,
    pub(super) bars: Vec<Bar>,
}

/// A text beside the line of its event, above the bars of its lane.
pub(super) struct Flag {
    pub(super) at: i64,
    pub(super) text: String,
    pub(super) font: Font,
    pub(super) beside: Beside,
}

/// What is to the left of a flag.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Beside {
    /// A separate line, down to the bar.
    Line,
    /// The line of another flag with the same time.
    Other,
    /// The cross of a write that is refused.
    Cross,
}

/// A write, drawn between the bars of the lane above and those of its own lane.
pub(super) struct Write {
    pub(super) at: i64,
    pub(super) by: Writer,
}

#[derive(Clone, Copy)]
pub(super) enum Writer {
    A,
    B,
    /// The write of A after the account has seen the fence of B.
    Late,
}

pub(super) struct Bar {
    pub(super) time: Range<i64>,
    pub(super) look: Look,
    pub(super) colours: Colours,
    /// The possible texts. The first one that fits is written on the bar.
    pub(super) texts: Vec<String>,
}

#[derive(Clone, Copy)]
pub(super) enum Look {
    /// A process that runs.
    Solid,
    /// A process that is paused.
    Dashed,
    /// The content of a document.
    Tinted,
    /// The end of a lease that its holder leaves unused, drawn over the other bars.
    Margin,
}

pub(super) fn lanes(run: &Run, detail: Detail, theme: &Theme) -> [Lane; 4] {
    [
        lock(run, detail, theme),
        process_a(run, detail, theme),
        account(run, theme),
        process_b(run, theme),
    ]
}

fn lock(run: &Run, detail: Detail, theme: &Theme) -> Lane {
    let flag = |at, text: &str| flag(theme, at, text);
    let flags = match detail {
        Detail::Brief => vec![flag(run.b_granted, "expired, and granted to B")],
        Detail::Full => {
            let mut flags = vec![flag(0, "granted to A")];
            flags.extend(run.a_renewed.iter().map(|at| flag(*at, "renewed")));
            flags.push(flag(run.a_expired, "expires"));
            flags.push(flag(run.b_granted, "granted to B"));
            flags
        }
    };
    let (fence_a, fence_b) = short_fences(run.fence_a, run.fence_b);
    let lease = |of: &str, fence: &str| {
        vec![
            format!("lease of {of}, fence {fence}"),
            format!("{of}, fence {fence}"),
            of.to_owned(),
        ]
    };
    let bar = |time, colours, texts| Bar {
        time,
        look: Look::Tinted,
        colours,
        texts,
    };
    Lane {
        name: "lock",
        place: "in MongoDB",
        flags,
        writes: Vec::new(),
        bars: [
            bar(0..run.a_expired, theme.a, lease("A", &fence_a)),
            bar(run.b_granted..run.b_released, theme.b, lease("B", &fence_b)),
        ]
        .into_iter()
        .chain(margin(run, detail, theme))
        .collect(),
    }
}

/// The end of the lease of A that A leaves unused.
fn margin(run: &Run, detail: Detail, theme: &Theme) -> Option<Bar> {
    (detail == Detail::Full).then(|| Bar {
        time: run.a_deadline..run.a_expired,
        look: Look::Margin,
        colours: theme.a,
        texts: Vec::new(),
    })
}

fn process_a(run: &Run, detail: Detail, theme: &Theme) -> Lane {
    let flag = |at, text: &str| flag(theme, at, text);
    let mut flags = vec![flag(run.a_wrote, "writes")];
    match detail {
        Detail::Brief => {
            flags.push(flag(run.a_paused, "paused (SIGSTOP)"));
            flags.push(flag(run.a_resumed, "runs again (SIGCONT)"));
        }
        Detail::Full => {
            let margin = seconds(run.a_expired - run.a_deadline);
            flags.push(flag(run.a_paused, "is_live() is true, then SIGSTOP"));
            flags.push(flag(
                run.a_deadline,
                "local deadline, is_live() turns false",
            ));
            flags.push(Flag {
                text: format!("margin: {margin} before the expiry"),
                beside: Beside::Other,
                ..flag(run.a_deadline, "")
            });
            flags.push(flag(run.a_resumed, "SIGCONT, lost() returns"));
        }
    }
    let bar = |time, look, text: &str| Bar {
        time,
        look,
        colours: theme.a,
        texts: vec![text.to_owned()],
    };
    Lane {
        name: "process A",
        place: "",
        flags,
        writes: Vec::new(),
        bars: [
            bar(0..run.a_paused, Look::Solid, "works"),
            bar(run.a_paused..run.a_resumed, Look::Dashed, "paused"),
        ]
        .into_iter()
        .chain(margin(run, detail, theme))
        .collect(),
    }
}

fn account(run: &Run, theme: &Theme) -> Lane {
    let (fence_a, fence_b) = short_fences(run.fence_a, run.fence_b);
    let refusal = |text: &str, size| Flag {
        at: run.a_refused,
        text: text.to_owned(),
        font: Font {
            size,
            bold: true,
            colour: theme.refused,
        },
        beside: Beside::Cross,
    };
    let flags = vec![
        refusal("late write refused", 15.0),
        refusal("Error::Fenced", 13.0),
    ];
    let bar = |time, colours, fence: &str| Bar {
        time,
        look: Look::Tinted,
        colours,
        texts: vec![
            format!("greatest fence seen: {fence}"),
            format!("fence seen: {fence}"),
            fence.to_owned(),
        ],
    };
    Lane {
        name: "account",
        place: "in MongoDB",
        flags,
        writes: vec![
            Write {
                at: run.a_wrote,
                by: Writer::A,
            },
            Write {
                at: run.a_refused,
                by: Writer::Late,
            },
        ],
        bars: vec![
            bar(run.a_wrote..run.b_wrote, theme.a, &fence_a),
            bar(run.b_wrote..run.b_released, theme.b, &fence_b),
        ],
    }
}

fn process_b(run: &Run, theme: &Theme) -> Lane {
    let bar = |time, look, texts: &[&str]| Bar {
        time,
        look,
        colours: theme.b,
        texts: texts.iter().map(|text| (*text).to_owned()).collect(),
    };
    Lane {
        name: "process B",
        place: "",
        flags: vec![Flag {
            beside: Beside::Other,
            ..flag(theme, run.b_wrote, "writes")
        }],
        writes: vec![Write {
            at: run.b_wrote,
            by: Writer::B,
        }],
        bars: vec![
            bar(
                run.b_asked..run.b_granted,
                Look::Dashed,
                &["waits for the lock", "waits"],
            ),
            bar(run.b_granted..run.b_released, Look::Solid, &["works"]),
        ],
    }
}

fn flag(theme: &Theme, at: i64, text: &str) -> Flag {
    Flag {
        at,
        text: format!("{} {text}", seconds(at)),
        font: Font {
            size: 13.0,
            bold: false,
            colour: theme.text,
        },
        beside: Beside::Line,
    }
}

pub(super) fn seconds(milliseconds: i64) -> String {
    format!("{:.2} s", milliseconds as f64 / 1000.0)
}

/// The last digits of two fences, from the first digit in which they differ, and at least five digits.
pub(super) fn short_fences(a: i64, b: i64) -> (String, String) {
    let (a, b) = (a.to_string(), b.to_string());
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    if a.len() != b.len() || a.len() <= 5 {
        return (a, b);
    }
    let start = same.min(a.len() - 5);
    let end = |fence: String| match fence.get(start..) {
        Some(end) if start > 0 => format!("…{end}"),
        _ => fence,
    };
    (end(a), end(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_fences_show_which_is_greater() {
        let short = |a, b| short_fences(a, b);
        let both = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let (near, far) = (1_795_377_369_395, 1_795_377_369_396);
        assert_eq!(short(near, far), both("…69395", "…69396"));
        let (before, after) = (1_795_377_399_990, 1_795_377_402_310);
        assert_eq!(short(before, after), both("…399990", "…402310"));
        assert_eq!(short(7, 8), both("7", "8"));
        assert_eq!(short(99_999, 100_000), both("99999", "100000"));
    }
}
