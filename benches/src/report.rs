//! Writes `measurements.md` from the stored results, with a plot of each case, and the figures of `performance.md`.

use std::{fmt::Write, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{
    cases::{self, Case, sides::SIDES},
    cli::ReportOptions,
    machine::Machine,
    plot,
    results::{CaseResult, Metric, SideResult, grouped},
    summary,
};

/// In a table with more columns than this, figures that are compared with nothing become rows.
const WIDEST: usize = 10;
const HEAD: &str = "\
# Measurements

All that `leasehold-benches` measures, case by case. `leasehold-benches report` writes this page, and overwrites it. What
matters in it to a user is in [performance](performance.md), with the commands that measure everything.
";
const METHOD: &str = "\
## How the figures are computed

In a round each side works for a moment, in an order that is shuffled for each round. The first round warms up and does
not count. A figure is the median over the rounds. A ratio compares a side with the first one in the same round, so that
other load on the machine affects both. Beside the median of a ratio stand its quartiles. For counts per second a ratio
above 1 is better, for times a ratio below 1. The percentiles of an operation are those of all rounds together. CPU is the
time of this process and of the server for one operation, from the accounts of their threads.

All sides use the same client with the same pool and the same write concern, and each has a collection of its own in the
same database. On a standalone server the write concern is `w: 1` and `j: true`, because that server does not wait for its
journal if it is asked for a majority.

A cycle is an acquire of a free key and its release.
";

pub fn write(options: &ReportOptions) -> Result<()> {
    let machine: Machine = read(&options.from.join("machine.json"))?;
    let results = results(&options.from)?;
    ensure!(
        !results.is_empty(),
        "no results in {}: measure first",
        options.from.display()
    );
    let plots = options.to.join("performance");
    // The plots of cases that are gone go too.
    if plots.exists() {
        fs::remove_dir_all(&plots)?;
    }
    fs::create_dir_all(&plots)?;
    let page = measurements(&machine, &results, &plots)?;
    fs::write(options.to.join("measurements.md"), page)?;
    summary::write(&options.to.join("performance.md"), &machine, &results)?;
    println!(
        "{} results are in {}",
        results.len(),
        options.to.join("measurements.md").display()
    );
    Ok(())
}

fn results(folder: &Path) -> Result<Vec<CaseResult>> {
    let mut results: Vec<CaseResult> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_case = path.extension().is_some_and(|end| end == "json")
            && path.file_name().is_some_and(|name| name != "machine.json");
        if is_case {
            results.push(read(&path)?);
        }
    }
    results.sort_by_key(|result| result.engine.clone());
    Ok(results)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let read = || -> Result<T> { Ok(serde_json::from_str(&fs::read_to_string(path)?)?) };
    read().with_context(|| format!("cannot read {}", path.display()))
}

fn measurements(machine: &Machine, results: &[CaseResult], plots: &Path) -> Result<String> {
    let mut text = format!("{HEAD}\n{machine}\n\n{METHOD}\n## What is compared\n\n");
    text.push_str("| side | what it is | what it promises |\n|---|---|---|\n");
    for side in SIDES {
        let (name, what, promises) = (side.name, side.what, side.promises);
        writeln!(text, "| `{name}` | {what} | {promises} |")?;
    }
    for case in cases::CASES {
        let of_case: Vec<_> = results.iter().filter(|it| it.case == case.name).collect();
        section(&mut text, case, &of_case, plots)?;
    }
    Ok(text)
}

/// A case on all its engines.
fn section(text: &mut String, case: &Case, results: &[&CaseResult], plots: &Path) -> Result<()> {
    writeln!(text, "\n## {}\n\n{}\n", case.name, case.about)?;
    let Some(first) = results.first() else {
        writeln!(text, "Not measured.")?;
        return Ok(());
    };
    let rounds = metrics(first).map(|metric| metric.rounds).max();
    let rounds = match rounds.unwrap_or(0) {
        0 | 1 => String::new(),
        rounds => format!(", {rounds} rounds"),
    };
    let seconds = first.seconds;
    writeln!(
        text,
        "`leasehold-benches run --case {} --seconds {seconds}`{rounds}.",
        case.name
    )?;
    for result in results {
        if result.engine != "memory" && result.engine.to_lowercase() != case.name {
            writeln!(text, "\n### {} on {}", case.name, result.engine)?;
        }
        writeln!(text)?;
        for name in plot::draw(result, plots)? {
            let (case, engine) = (case.name, &result.engine);
            writeln!(text, "![{case} on {engine}](performance/{name})\n")?;
        }
        figures(text, result)?;
    }
    Ok(())
}

fn metrics(result: &CaseResult) -> impl Iterator<Item = &Metric> {
    let sides = result.variants.iter().flat_map(|variant| &variant.sides);
    sides.flat_map(|side| &side.metrics)
}

fn figures(text: &mut String, result: &CaseResult) -> Result<()> {
    let mut columns: Vec<(&str, bool)> = Vec::new();
    for metric in metrics(result) {
        match columns.iter_mut().find(|column| column.0 == metric.name) {
            Some(column) => column.1 |= compares(metric),
            None => columns.push((&metric.name, compares(metric))),
        }
    }
    if columns.len() > WIDEST && columns.iter().all(|column| !column.1) {
        return tall_table(text, result, &columns);
    }
    table(text, result, &columns)
}

/// Writes a table with a column for each side.
fn tall_table(text: &mut String, result: &CaseResult, rows: &[(&str, bool)]) -> Result<()> {
    for (place, variant) in result.variants.iter().enumerate() {
        if place > 0 {
            writeln!(text)?;
        }
        let (mut head, mut rule) = (format!("| {} |", variant.name), String::from("|---|"));
        for side in &variant.sides {
            write!(head, " {} |", side.name)?;
            rule.push_str("---:|");
        }
        writeln!(text, "{head}\n{rule}")?;
        for row in rows {
            write!(text, "| {} |", row.0)?;
            for side in &variant.sides {
                cells(text, side, row)?;
            }
            writeln!(text)?;
        }
    }
    Ok(())
}

/// Whether a ratio adds something to the figures.
fn compares(metric: &Metric) -> bool {
    let told = metric.name.ends_with("/s") && metric.name != "between processes/s";
    metric.ratio.is_some() && (told || metric.name.ends_with("p99, ms"))
}

fn table(text: &mut String, result: &CaseResult, columns: &[(&str, bool)]) -> Result<()> {
    let base = result
        .variants
        .first()
        .and_then(|variant| variant.sides.first());
    let base = base.map_or("raw", |side| &side.name);
    let (mut head, mut rule) = (String::from("| | side |"), String::from("|---|---|"));
    for (name, ratio) in columns {
        write!(head, " {name} |")?;
        rule.push_str("---:|");
        if *ratio {
            write!(head, " / {base} |")?;
            rule.push_str("---:|");
        }
    }
    writeln!(text, "{head}\n{rule}")?;
    for variant in &result.variants {
        for (place, side) in variant.sides.iter().enumerate() {
            let name = if place == 0 { &variant.name } else { "" };
            write!(text, "| {name} | {} |", side.name)?;
            for column in columns {
                cells(text, side, column)?;
            }
            writeln!(text)?;
        }
    }
    Ok(())
}

fn cells(text: &mut String, side: &SideResult, (name, has_ratio): &(&str, bool)) -> Result<()> {
    let metric = side.metrics.iter().find(|metric| metric.name == *name);
    let value = metric.map(|metric| grouped(metric.value.median));
    write!(text, " {} |", value.unwrap_or_default())?;
    if !has_ratio {
        return Ok(());
    }
    // The ratio of a difference to the whole of another side has no meaning.
    let ratio = metric.and_then(|metric| metric.ratio);
    match ratio.filter(|_| !side.name.contains('−')) {
        Some(ratio) => write!(
            text,
            " **{:.2}** ({:.2}–{:.2}) |",
            ratio.median, ratio.q1, ratio.q3
        )?,
        None => text.push_str(" |"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_case_as_it_is_described_now() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/measurements.md");
        let page = fs::read_to_string(page).unwrap();
        for case in cases::CASES {
            let section = format!("\n## {}\n\n{}\n", case.name, case.about);
            assert!(
                page.contains(&section),
                "write the page anew: {}",
                case.name
            );
        }
        for side in SIDES {
            assert!(
                page.contains(side.what),
                "write the page anew: {}",
                side.name
            );
        }
        assert!(page.starts_with(HEAD) && page.contains(METHOD));
    }
}
