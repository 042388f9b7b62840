//! Plots of the results: points, with the middle half of the rounds around them, or times, from p50 to p99. The ground
//! is white, so that the plots are readable on a dark page too.

use std::{ops::Range, path::Path};

use anyhow::{Result, anyhow};
use plotters::{coord::Shift, prelude::*};

use crate::results::{CaseResult, Metric, Quartiles, SideResult, Variant};

const SIZE: (u32, u32) = (820, 420);
/// The space for the legend.
const TOP: i32 = 72;
const FONT: &str = "sans-serif";
/// The colour of each side, the same in every plot. People with colour blindness can also tell them apart.
const COLOURS: [(&str, RGBColor); 12] = [
    ("raw", RGBColor(0, 0, 0)),
    ("raw-release-w1", RGBColor(90, 90, 90)),
    ("raw-ttl-index", RGBColor(160, 160, 160)),
    ("leasehold-store", RGBColor(86, 180, 233)),
    ("leasehold", RGBColor(0, 90, 180)),
    ("leasehold-durable", RGBColor(120, 94, 240)),
    ("leasehold-dropped", RGBColor(160, 80, 0)),
    ("mongo-lock-async", RGBColor(230, 159, 0)),
    ("distributed-lock-mongo", RGBColor(0, 158, 115)),
    ("mongodb-lock", RGBColor(204, 80, 120)),
    ("leasehold-barging", RGBColor(213, 94, 0)),
    ("leasehold-polling", RGBColor(130, 130, 130)),
];
const LINE: RGBColor = RGBColor(225, 225, 225);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What a plot shows.
enum Shown {
    /// A metric divided by that of the first side.
    Ratio(&'static str),
    Value(&'static str),
    /// A line from the first metric to the second, both times, on a logarithmic scale.
    Times(&'static str, &'static str),
    /// The same for acquires of free keys, by the bare driver and leasehold alone.
    Acquires,
}

/// The plots of a case, each with what its name has behind that of the case.
fn shown(case: &str) -> Vec<(&'static str, Shown)> {
    let shown = match case {
        "cycle" | "cycle-existing" | "search-cycle" => {
            return vec![("", Shown::Ratio("cycles/s")), ("-times", Shown::Acquires)];
        }
        "held" | "search-held" => Shown::Ratio("attempts/s"),
        "takeover" => Shown::Ratio("takeovers/s"),
        "handoff" | "handoff-processes" => Shown::Times("wait p50, ms", "wait p99, ms"),
        "fairness" => Shown::Times("wait p50, ms", "wait p99, ms"),
        "fairness-writer" => Shown::Times("write p50, ms", "write p99, ms"),
        "sqlite" => Shown::Times("cycle p50, ms", "cycle p99, ms"),
        "set" => Shown::Ratio("sets/s"),
        "limiter" => Shown::Ratio("permits/s"),
        "live" => Shown::Value("cycles/s"),
        "waiters" | "fairness-polls" => Shown::Value("commands/s"),
        _ => return Vec::new(),
    };
    vec![("", shown)]
}

impl Shown {
    fn of(&self, side: &SideResult) -> Option<Quartiles> {
        let named = |name: &str| side.metrics.iter().find(|metric| metric.name == name);
        match self {
            Self::Ratio(name) => named(name).and_then(|metric: &Metric| metric.ratio),
            Self::Value(name) => named(name).map(|metric| metric.value),
            Self::Times(p50, p99) => {
                let (q1, q3) = (named(p50)?.value.median, named(p99)?.value.median);
                let median = q1;
                Some(Quartiles { q1, median, q3 })
            }
            Self::Acquires if ["raw", "leasehold"].contains(&side.name.as_str()) => {
                Self::Times("acquire p50, ms", "acquire p99, ms").of(side)
            }
            Self::Acquires => None,
        }
    }

    fn label(&self, base: &str) -> String {
        match self {
            Self::Ratio(name) => format!("{name}, over {base}"),
            Self::Value(name) => (*name).to_owned(),
            Self::Times(p50, _) => p50.replace("p50, ms", "p50 to p99, ms"),
            Self::Acquires => "acquire p50 to p99, ms".into(),
        }
    }
}

/// The name of the file of a plot on the engine of this result.
pub fn name(plot: &str, result: &CaseResult) -> String {
    format!("{plot}.{}.svg", result.engine_slug())
}

/// Draws the plots of a case, and returns the names of their files.
pub fn draw(result: &CaseResult, folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (behind, shown) in shown(&result.case) {
        let name = name(&format!("{}{behind}", result.case), result);
        plot(result, &shown, &folder.join(&name))
            // The errors of the library borrow the drawing area, so they become text here.
            .map_err(|error| anyhow!("cannot draw {name}: {error}"))?;
        names.push(name);
    }
    Ok(names)
}

type Drawn<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The vertical axis.
struct Scale {
    least: f64,
    most: f64,
    is_logarithmic: bool,
}

impl Scale {
    /// A scale that has all values of these sides.
    fn of(result: &CaseResult, shown: &Shown) -> Self {
        let all = result.variants.iter().flat_map(|variant| &variant.sides);
        let all: Vec<_> = all.filter_map(|side| shown.of(side)).collect();
        let most = all.iter().map(|at| at.q3).fold(f64::MIN_POSITIVE, f64::max);
        let least = all.iter().map(|at| at.q1).fold(most, f64::min);
        match shown {
            Shown::Times(..) | Shown::Acquires => Self {
                // A microsecond is less than any of these times.
                least: (least.max(0.001) / 1.3).log10(),
                most: (most.max(0.001) * 1.3).log10(),
                is_logarithmic: true,
            },
            Shown::Ratio(_) => Self::linear(most.max(1.0)),
            Shown::Value(_) => Self::linear(most),
        }
    }

    fn linear(most: f64) -> Self {
        Self {
            least: 0.0,
            most: most * 1.08,
            is_logarithmic: false,
        }
    }

    fn place(&self, value: f64) -> f64 {
        if self.is_logarithmic {
            value.max(0.001).log10()
        } else {
            value
        }
    }

    /// The values 1, 2 and 5 times each power of ten on the axis.
    fn ticks(&self) -> Vec<f64> {
        let powers = self.least.floor() as i32..=self.most.ceil() as i32;
        let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|it| it * 10_f64.powi(power)));
        let is_inside = |it: &f64| (self.least..=self.most).contains(&it.log10());
        all.filter(is_inside).collect()
    }
}

fn plot(result: &CaseResult, shown: &Shown, path: &Path) -> Drawn {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let Some(first) = result.variants.first() else {
        return Ok(());
    };
    let sides: Vec<&str> = first
        .sides
        .iter()
        .filter(|side| shown.of(side).is_some())
        .map(|side| side.name.as_str())
        .collect();
    let (top, bottom) = root.split_vertically(TOP);
    legend(&top, result, &sides)?;

    let base = first.sides.first().map_or("raw", |side| side.name.as_str());
    let (scale, count) = (Scale::of(result, shown), result.variants.len());
    let mut chart = ChartBuilder::on(&bottom)
        .margin_left(10)
        .margin_right(20)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..count as f64, scale.least..scale.most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(LINE)
        .x_labels(0)
        .y_labels(if scale.is_logarithmic { 0 } else { 6 })
        .y_label_formatter(&tick)
        .y_desc(shown.label(base))
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .draw()?;
    for between in 1..count {
        let x = between as f64;
        let line = PathElement::new([(x, scale.least), (x, scale.most)], LINE);
        chart.draw_series([line])?;
    }
    if scale.is_logarithmic {
        let style = before(13);
        for value in scale.ticks() {
            let y = scale.place(value);
            chart.draw_series([PathElement::new([(0.0, y), (count as f64, y)], LINE)])?;
            let (x, y) = chart.plotting_area().map_coordinate(&(0.0, y));
            root.draw_text(&tick(&value), &style, (x - 8, y))?;
        }
    }
    if let Shown::Ratio(_) = shown {
        let one = PathElement::new([(0.0, 1.0), (count as f64, 1.0)], BLACK.stroke_width(2));
        chart.draw_series([one])?;
    }
    for (place, &side) in sides.iter().enumerate() {
        let style = colour(side, place);
        for (number, variant) in result.variants.iter().enumerate() {
            let Some(at) = variant.side(side).and_then(|side| shown.of(side)) else {
                continue;
            };
            let x = number as f64 + (place as f64 + 1.0) / (sides.len() as f64 + 1.0);
            let [q1, median, q3] = [at.q1, at.median, at.q3].map(|value| scale.place(value));
            let line = PathElement::new([(x, q1), (x, q3)], style.stroke_width(3));
            chart.draw_series([line])?;
            chart.draw_series([Circle::new((x, median), 5, style.filled())])?;
        }
    }
    let (across, down) = chart.plotting_area().get_pixel_range();
    let axis = first.x_label.clone().unwrap_or_default();
    let labels = result.variants.iter().map(label).collect::<Vec<_>>();
    below(&root, &labels, &axis, across, down.end)
}

/// Writes the labels of the horizontal axis. They are the names of the variants, and no numbers.
fn below(root: &Area<'_>, labels: &[String], axis: &str, across: Range<i32>, y: i32) -> Drawn {
    let (width, style) = (across.end - across.start, centred(14));
    let count = labels.len() as i32;
    for (number, label) in labels.iter().enumerate() {
        let x = across.start + width * (2 * number as i32 + 1) / (2 * count);
        root.draw_text(label, &style, (x, y + 8))?;
    }
    root.draw_text(axis, &style, (across.start + width / 2, y + 26))?;
    root.present()?;
    Ok(())
}

/// The colour of a side, and if it has none that of its place.
fn colour(side: &str, place: usize) -> RGBColor {
    let known = COLOURS.iter().find(|known| known.0 == side);
    known.map_or(COLOURS[place % COLOURS.len()].1, |known| known.1)
}

/// The label of a tick: a round number.
fn tick(value: &f64) -> String {
    match value.abs() {
        size if size < 100.0 => format!("{}", (value * 1e3).round() / 1e3),
        _ => crate::results::grouped(*value),
    }
}

fn label(variant: &Variant) -> String {
    match variant.x {
        Some(x) => crate::results::grouped(x),
        None => variant.name.clone(),
    }
}

fn centred(size: i32) -> TextStyle<'static> {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let style = TextStyle::from((FONT, size).into_font());
    style.pos(Pos::new(HPos::Center, VPos::Top))
}

/// The style of a text that ends at its place.
fn before(size: i32) -> TextStyle<'static> {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let style = TextStyle::from((FONT, size).into_font());
    style.pos(Pos::new(HPos::Right, VPos::Center))
}

fn legend(area: &Area<'_>, result: &CaseResult, sides: &[&str]) -> Drawn {
    let title = format!("{}: {}", result.case, result.engine);
    area.draw_text(&title, &TextStyle::from((FONT, 16).into_font()), (70, 8))?;
    let style = TextStyle::from((FONT, 13).into_font());
    let (mut x, mut y) = (76, 38);
    for (place, side) in sides.iter().enumerate() {
        let width = 30 + side.len() as i32 * 6;
        // A second line has what does not fit into the first.
        if x + width > SIZE.0 as i32 {
            (x, y) = (76, y + 18);
        }
        area.draw(&Circle::new((x, y), 5, colour(side, place).filled()))?;
        area.draw_text(side, &style, (x + 10, y - 7))?;
        x += width;
    }
    Ok(())
}
