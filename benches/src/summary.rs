//! Writes the figures of `performance.md`: what each operation costs, and the plots that matter to a user. The text
//! outside the two marks is written by people, and is not changed.

use std::{fmt::Write, fs, path::Path};

use anyhow::{Context, Result};

use crate::{
    machine::Machine,
    plot,
    results::{CaseResult, grouped},
};

const BEGIN: &str = "<!-- figures: begin -->";
const END: &str = "<!-- figures: end -->";
const MONGODB: &str = "MongoDB";

/// An operation in the table, and where its figures are.
struct Row {
    what: &'static str,
    case: &'static str,
    engine: &'static str,
    variant: &'static str,
    side: &'static str,
    /// What the names of the percentiles begin with.
    times: &'static str,
    /// How often a second, and whether the ratio to the first side is one to the bare driver.
    rate: (&'static str, bool),
    commands: Commands,
}

#[derive(Clone, Copy)]
enum Commands {
    Unknown,
    /// Those of one operation, from this variant of the case `commands`.
    Each(&'static str),
    /// Those of the case itself in a second.
    ASecond,
}

const CYCLE: Row = Row {
    what: "",
    case: "cycle-existing",
    engine: MONGODB,
    variant: "1 task",
    side: "leasehold",
    times: "acquire ",
    rate: ("cycles/s", true),
    commands: Commands::Unknown,
};

const fn cycle(what: &'static str, variant: &'static str) -> Row {
    Row {
        what,
        variant,
        ..CYCLE
    }
}

const fn new(what: &'static str, engine: &'static str, variant: &'static str) -> Row {
    Row {
        case: "cycle",
        engine,
        ..cycle(what, variant)
    }
}

const fn other(
    what: &'static str,
    case: &'static str,
    variant: &'static str,
    times: &'static str,
    rate: (&'static str, bool),
    commands: Commands,
) -> Row {
    Row {
        what,
        case,
        variant,
        times,
        rate,
        commands,
        ..CYCLE
    }
}

const NONE: (&str, bool) = ("", false);

const ROWS: &[Row] = &[
    Row {
        what: "acquire a key that is free again, 1 task",
        commands: Commands::Each("a cycle"),
        ..CYCLE
    },
    cycle("… 8 tasks", "8 tasks"),
    cycle("… 64 tasks", "64 tasks"),
    cycle("… 256 tasks", "256 tasks"),
    new("acquire a new key, 1 task", MONGODB, "1 task"),
    new("… 64 tasks", MONGODB, "64 tasks"),
    new("… 1 task, replica set", "MongoDB replica set", "1 task"),
    new(
        "… three members 1 ms apart",
        "MongoDB three members 1 ms apart",
        "1 task",
    ),
    new(
        "… 10 ms apart",
        "MongoDB three members 10 ms apart",
        "1 task",
    ),
    other(
        "try a held key, 8 tasks",
        "held",
        "held, own keys",
        "",
        ("attempts/s", true),
        Commands::Each("an attempt on a held key"),
    ),
    other(
        "hand over between 8 tasks of a process",
        "handoff",
        "8 tasks",
        "wait ",
        ("handoffs/s", true),
        Commands::Each("a hand-over in the process"),
    ),
    other(
        "… between 2 processes with 4 tasks each",
        "handoff-processes",
        "released at once",
        "wait ",
        ("between processes/s", false),
        Commands::Unknown,
    ),
    other(
        "8 processes in turn, each for 5 ms",
        "fairness",
        "8 processes",
        "wait ",
        ("grants/s", false),
        Commands::Unknown,
    ),
    other(
        "acquire and release 8 keys together",
        "set",
        "8 keys",
        "",
        ("sets/s", true),
        Commands::Each("a set of 8 keys"),
    ),
    other(
        "… 32 keys",
        "set",
        "32 keys",
        "",
        ("sets/s", true),
        Commands::Each("a set of 32 keys"),
    ),
    other(
        "a permit of a limiter, 1 task",
        "limiter",
        "1 task",
        "",
        ("permits/s", true),
        Commands::Each("a permit"),
    ),
    other(
        "… 64 tasks",
        "limiter",
        "64 tasks",
        "",
        ("permits/s", true),
        Commands::Unknown,
    ),
    Row {
        side: "leasehold-sticky",
        ..other(
            "acquire and release a sticky key, 8 tasks",
            "sticky",
            "8 tasks",
            "",
            ("cycles/s", true),
            Commands::Unknown,
        )
    },
    other(
        "keep 10,000 leases alive, ttl 30 s",
        "kept",
        "10,000 leases, ttl 30 s",
        "",
        NONE,
        Commands::ASecond,
    ),
    other(
        "1,000 tasks wait for a held key",
        "waiters",
        "1,000 waiters",
        "",
        NONE,
        Commands::ASecond,
    ),
    Row {
        case: "search-cycle",
        engine: "Elasticsearch",
        ..cycle("Elasticsearch: acquire a free key, 8 tasks", "8 tasks")
    },
    Row {
        case: "search-cycle",
        engine: "OpenSearch",
        ..cycle("OpenSearch: the same", "8 tasks")
    },
    sqlite("SQLite: acquire and release, 1 task", "1 task"),
    sqlite("… 64 tasks", "64 tasks"),
    sqlite("… 8 processes with 8 tasks each", "8 processes"),
];

const fn sqlite(what: &'static str, side: &'static str) -> Row {
    Row {
        what,
        case: "sqlite",
        engine: "SQLite",
        variant: "keys that exist",
        side,
        times: "cycle ",
        rate: ("cycles/s", false),
        commands: Commands::Unknown,
    }
}

/// A plot, by its case, what its name has behind that, and what it shows.
const PLOTS: &[(&str, &str, &str)] = &[
    (
        "cycle-existing",
        "cycle-existing-times",
        "How long one acquire of a free key takes, from the median to the 99th percentile",
    ),
    (
        "cycle-existing",
        "cycle-existing",
        "Cycles a second, over those of the bare driver",
    ),
    (
        "fairness",
        "fairness",
        "How long eight processes wait for one key that each holds for 5 ms",
    ),
    (
        "waiters",
        "waiters",
        "The commands of tasks that wait for one key",
    ),
];

/// Writes the figures between the marks.
pub fn write(path: &Path, machine: &Machine, results: &[CaseResult]) -> Result<()> {
    let page =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) =
        parts.with_context(|| format!("the page lacks the marks '{BEGIN}' and '{END}'"))?;
    let figures = figures(machine, results)?;
    Ok(fs::write(
        path,
        format!("{before}{BEGIN}\n{figures}{END}{after}"),
    )?)
}

fn figures(machine: &Machine, results: &[CaseResult]) -> Result<String> {
    let mut text = format!("\n{machine}\n\n");
    text.push_str("||p50, ms|p99, ms|a second|/ bare driver|commands|\n");
    text.push_str("|---|---:|---:|---:|---:|---:|\n");
    let find = |case: &str, engine: &str| {
        let mut results = results.iter();
        results.find(|it| it.case == case && it.engine == engine)
    };
    for row in ROWS {
        let result = find(row.case, row.engine);
        let metric = |name: &str| result?.metric(row.variant, row.side, name);
        let value = |name: &str| metric(name).map(|it| grouped(it.value.median));
        let ratio = metric(row.rate.0).filter(|_| row.rate.1);
        let ratio = ratio
            .and_then(|it| it.ratio)
            .map(|it| format!("{:.2}", it.median));
        let commands = match row.commands {
            Commands::Unknown => None,
            Commands::Each(variant) => {
                let counted = find("commands", MONGODB);
                let counted = counted.and_then(|it| it.metric(variant, "leasehold", "commands"));
                counted.map(|it| grouped(it.value.median))
            }
            Commands::ASecond => value("commands/s").map(|it| format!("{it} a second")),
        };
        let cells = [
            value(&format!("{}p50, ms", row.times)),
            value(&format!("{}p99, ms", row.times)),
            value(row.rate.0),
            ratio,
            commands,
        ];
        let cells = cells.map(Option::unwrap_or_default);
        writeln!(text, "|{}|{}|", row.what, cells.join("|"))?;
    }
    for (case, name, caption) in PLOTS {
        if let Some(result) = find(case, MONGODB) {
            let file = plot::name(name, result);
            writeln!(text, "\n![{caption}](performance/{file})")?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn each_row_and_plot_is_of_a_case() {
        let is_case = |name: &str| cases::CASES.iter().any(|case| case.name == name);
        for row in ROWS {
            assert!(is_case(row.case), "{}", row.what);
        }
        assert!(PLOTS.iter().all(|plot| is_case(plot.0)));
    }
}
