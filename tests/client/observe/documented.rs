//! `docs/observability.md` names the metrics that exist, and no others.

use std::collections::BTreeSet;

use super::meter::described;

const DOCUMENT: &str = include_str!("../../../docs/observability.md");

/// The rows of the table whose first cell begins with this text, as the texts of their cells.
fn rows(first: &str) -> Vec<Vec<&str>> {
    let lines = DOCUMENT.lines().filter(|line| line.starts_with(first));
    let cells = |line: &'static str| line.trim_matches('|').split(" | ");
    lines
        .map(|line| {
            cells(line)
                .map(|cell| cell.trim_matches([' ', '`']))
                .collect()
        })
        .collect()
}

#[test]
fn each_metric_with_its_type_and_no_other() {
    let described: BTreeSet<_> = described()
        .into_iter()
        .map(|(kind, name, _)| [name, kind.to_owned()])
        .collect();
    let rows = rows("| `leasehold_");
    let documented: BTreeSet<_> = rows
        .iter()
        .map(|row| [row[0], row[1]].map(str::to_owned))
        .collect();
    assert_eq!(documented, described);
    assert_eq!(rows.len(), documented.len(), "one row each");
    // The text outside of the tables names no other metric.
    let names = DOCUMENT.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    for name in names.filter(|name| name.starts_with("leasehold_")) {
        let base = name.trim_end_matches("_bucket").trim_end_matches("_count");
        assert!(described.iter().any(|it| it[0] == base), "{name}");
    }
}

#[test]
fn names_follow_the_conventions() {
    for (kind, name, unit) in described() {
        let unit = unit.map(|unit| unit.as_str());
        assert!(name.starts_with("leasehold_"), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        assert_eq!(
            name.ends_with("_seconds"),
            unit == Some("seconds"),
            "{name}"
        );
    }
}
