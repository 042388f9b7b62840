//! The stored result of a case: plain numbers, for the report and for further analysis.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One case on one engine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CaseResult {
    pub case: String,
    pub engine: String,
    /// For how long each side was measured, as `--seconds` said.
    pub seconds: f64,
    pub variants: Vec<Variant>,
}

/// The sides of a case under one condition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Variant {
    pub name: String,
    /// The position on the axis of a plot, if the variants are a series of numbers.
    pub x: Option<f64>,
    /// The label of the axis.
    pub x_label: Option<String>,
    pub sides: Vec<SideResult>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SideResult {
    pub name: String,
    pub metrics: Vec<Metric>,
}

/// A figure over all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Metric {
    pub name: String,
    pub rounds: usize,
    pub value: Quartiles,
    /// The ratio of the value to that of the first side in the same round.
    pub ratio: Option<Quartiles>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Quartiles {
    pub q1: f64,
    pub median: f64,
    pub q3: f64,
}

impl Quartiles {
    /// The quartiles; `None` if there is no value, or if a value is not finite.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = part * (values.len() - 1) as f64;
            let (below, above) = (place.floor() as usize, place.ceil() as usize);
            values[below] + (values[above] - values[below]) * place.fract()
        };
        Some(Self {
            q1: at(0.25),
            median: at(0.5),
            q3: at(0.75),
        })
    }
}

impl CaseResult {
    /// The name of the engine in the names of files.
    pub fn engine_slug(&self) -> String {
        self.engine.to_lowercase().replace(' ', "-")
    }

    /// The figure of a side under one condition.
    pub fn metric(&self, variant: &str, side: &str, name: &str) -> Option<&Metric> {
        let variant = self.variants.iter().find(|it| it.name == variant)?;
        let mut metrics = variant.side(side)?.metrics.iter();
        metrics.find(|metric| metric.name == name)
    }

    pub fn add(&mut self, name: impl Into<String>, sides: Vec<SideResult>) {
        self.variants.push(Variant {
            name: name.into(),
            x: None,
            x_label: None,
            sides,
        });
    }

    /// Adds a variant with a position on an axis.
    pub fn add_at(&mut self, x: usize, label: &str, sides: Vec<SideResult>) {
        self.variants.push(Variant {
            name: format!("{} {}", grouped(x as f64), plural(label, x)),
            x: Some(x as f64),
            x_label: Some(label.into()),
            sides,
        });
    }

    pub fn save(&self, folder: &Path) -> Result<()> {
        save(
            folder,
            &format!("{}.{}.json", self.case, self.engine_slug()),
            self,
        )
    }
}

impl Variant {
    pub fn side(&self, name: &str) -> Option<&SideResult> {
        self.sides.iter().find(|side| side.name == name)
    }
}

impl SideResult {
    /// A side that was measured once.
    pub fn once(name: &str, figures: &[(&str, f64)]) -> Self {
        let metrics = figures
            .iter()
            .map(|&(name, value)| Metric::single(name, 1, value));
        Self {
            name: name.into(),
            metrics: metrics.collect(),
        }
    }
}

impl Metric {
    /// One figure, over this many rounds.
    pub fn single(name: &str, rounds: usize, value: f64) -> Self {
        Self {
            name: name.into(),
            rounds,
            value: Quartiles {
                q1: value,
                median: value,
                q3: value,
            },
            ratio: None,
        }
    }
}

pub fn save(folder: &Path, name: &str, content: &impl Serialize) -> Result<()> {
    let path = folder.join(name);
    let keep = || -> Result<()> {
        fs::create_dir_all(folder)?;
        Ok(fs::write(&path, serde_json::to_string_pretty(content)?)?)
    };
    keep().with_context(|| format!("cannot write {}", path.display()))
}

fn plural(label: &str, count: usize) -> &str {
    match count {
        1 => label.strip_suffix('s').unwrap_or(label),
        _ => label,
    }
}

/// Formats a number for people: three significant digits, and groups of thousands.
pub fn grouped(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let (sign, digits) = whole
        .strip_prefix('-')
        .map_or(("", whole), |digits| ("-", digits));
    let mut grouped = String::from(sign);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if !rest.is_empty() {
        grouped.push('.');
        grouped.push_str(rest);
    }
    grouped
}
