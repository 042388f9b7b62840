//! Writes the results into the documentation: tables between two marks, and plots. The text outside the marks is
//! written by people, and is not changed.

use std::{fmt::Write, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{
    cases,
    cli::ReportOptions,
    machine::Machine,
    plot,
    results::{CaseResult, Metric, SideResult, grouped},
};

const BEGIN: &str = "<!-- results: begin -->";
const END: &str = "<!-- results: end -->";
/// In a table with more columns than this, figures that are compared with nothing become rows.
const WIDEST: usize = 10;

pub fn write(options: &ReportOptions) -> Result<()> {
    let machine: Machine = read(&options.from.join("machine.json"))?;
    let results = results(&options.from)?;
    ensure!(
        !results.is_empty(),
        "no results in {}: measure first",
        options.from.display()
    );
    let plots = options.to.join("performance");
    fs::create_dir_all(&plots)?;
    let mut text = on_machine(&machine)?;
    for result in &results {
        let plot = plot::draw(result, &plots)?;
        section(&mut text, result, plot.as_deref())?;
    }
    let path = options.to.join("performance.md");
    let page =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    fs::write(&path, between_marks(&page, &text)?)?;
    println!("{} cases are in {}", results.len(), path.display());
    Ok(())
}

/// All stored results, in the order of the cases.
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
    let place = |case: &str| cases::names().position(|name| name == case);
    results.sort_by_key(|result| (place(&result.case), result.engine.clone()));
    Ok(results)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let read = || -> Result<T> { Ok(serde_json::from_str(&fs::read_to_string(path)?)?) };
    read().with_context(|| format!("cannot read {}", path.display()))
}

fn between_marks(page: &str, text: &str) -> Result<String> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) =
        parts.with_context(|| format!("the page lacks the marks '{BEGIN}' and '{END}'"))?;
    Ok(format!("{before}{BEGIN}\n{text}{END}{after}"))
}

fn on_machine(machine: &Machine) -> Result<String> {
    let mut text = String::from("\n");
    write!(
        text,
        "Measured on {} cores of {}",
        machine.cores, machine.processor
    )?;
    if let Some(memory) = machine.memory_gib {
        write!(text, " with {memory} GiB of memory")?;
    }
    write!(
        text,
        ", Linux {}. Engines, on the same machine: ",
        machine.kernel
    )?;
    let engines = machine.engines.iter();
    let engines: Vec<_> = engines
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    writeln!(text, "{}.", engines.join(", "))?;
    Ok(text)
}

fn section(text: &mut String, result: &CaseResult, plot: Option<&str>) -> Result<()> {
    match result.engine.as_str() {
        "memory" => writeln!(text, "\n### {}\n", result.case)?,
        engine => writeln!(text, "\n### {}: {engine}\n", result.case)?,
    }
    let metrics: Vec<&Metric> = result
        .variants
        .iter()
        .flat_map(|variant| &variant.sides)
        .flat_map(|side| &side.metrics)
        .collect();
    let rounds = metrics
        .iter()
        .map(|metric| metric.rounds)
        .max()
        .unwrap_or(0);
    let about = result.about.trim();
    match rounds {
        0 | 1 => writeln!(text, "{about}\n")?,
        rounds => writeln!(text, "{about} {rounds} rounds.\n")?,
    }
    if let Some(plot) = plot {
        writeln!(
            text,
            "![{} on {}](performance/{plot})\n",
            result.case, result.engine
        )?;
    }
    let mut columns: Vec<(&str, bool)> = Vec::new();
    for metric in metrics {
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
