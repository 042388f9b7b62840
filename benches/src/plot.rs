//! Plots of the results: points, with the middle half of the rounds around them. The ground is white, so that the plots
//! are readable on a dark page too.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::{coord::Shift, prelude::*};

use crate::results::{CaseResult, Metric, Quartiles, SideResult, Variant};

const SIZE: (u32, u32) = (820, 420);
/// The space for the legend.
const TOP: i32 = 56;
const FONT: &str = "sans-serif";
/// The colour of each side, the same in every plot. People with colour blindness can also tell them apart.
const COLOURS: [(&str, RGBColor); 9] = [
    ("raw", RGBColor(0, 0, 0)),
    ("raw-ttl-index", RGBColor(130, 130, 130)),
    ("leasehold-store", RGBColor(86, 180, 233)),
    ("leasehold", RGBColor(0, 90, 180)),
    ("mongo-lock-async", RGBColor(230, 159, 0)),
    ("distributed-lock-mongo", RGBColor(0, 158, 115)),
    ("mongodb-lock", RGBColor(204, 80, 120)),
    ("leasehold-barging", RGBColor(213, 94, 0)),
    ("leasehold-polling", RGBColor(130, 130, 130)),
];
const LINE: RGBColor = RGBColor(225, 225, 225);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What the plot of a case shows.
enum Shown {
    /// A metric divided by that of the first side.
    Ratio(&'static str),
    Value(&'static str),
}

fn shown(case: &str) -> Option<Shown> {
    Some(match case {
        "cycle" | "cycle-existing" | "search-cycle" => Shown::Ratio("cycles/s"),
        "held" | "search-held" => Shown::Ratio("attempts/s"),
        "takeover" => Shown::Ratio("takeovers/s"),
        "handoff" | "handoff-processes" => Shown::Ratio("handoffs/s"),
        "set" => Shown::Ratio("sets/s"),
        "limiter" => Shown::Ratio("permits/s"),
        "live" => Shown::Value("cycles/s"),
        "waiters" | "fairness-polls" => Shown::Value("commands/s"),
        "fairness" => Shown::Value("longest / turn"),
        "fairness-writer" => Shown::Value("write p99, ms"),
        _ => return None,
    })
}

impl Shown {
    fn of(&self, side: &SideResult) -> Option<Quartiles> {
        let named = |name: &str| side.metrics.iter().find(|metric| metric.name == name);
        match self {
            Self::Ratio(name) => named(name).and_then(|metric: &Metric| metric.ratio),
            Self::Value(name) => named(name).map(|metric| metric.value),
        }
    }

    fn label(&self, base: &str) -> String {
        match self {
            Self::Ratio(name) => format!("{name}, over {base}"),
            Self::Value(name) => (*name).to_owned(),
        }
    }
}

/// Draws the plot of a case, if it has one, and returns the name of its file.
pub fn draw(result: &CaseResult, folder: &Path) -> Result<Option<String>> {
    let Some(shown) = shown(&result.case) else {
        return Ok(None);
    };
    let engine = result.engine.to_lowercase().replace(' ', "-");
    let name = format!("{}.{engine}.svg", result.case);
    plot(result, &shown, &folder.join(&name))
        // The errors of the library borrow the drawing area, so they become text here.
        .map_err(|error| anyhow!("cannot draw {name}: {error}"))?;
    Ok(Some(name))
}

fn plot(
    result: &CaseResult,
    shown: &Shown,
    path: &Path,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let Some(first) = result.variants.first() else {
        return Ok(());
    };
    let sides: Vec<&str> = first
        .sides
        .iter()
        .filter(|side| shown.of(side).is_some() && !side.name.contains('−'))
        .map(|side| side.name.as_str())
        .collect();
    let (top, bottom) = root.split_vertically(TOP);
    legend(&top, result, &sides)?;

    let base = first.sides.first().map_or("raw", |side| side.name.as_str());
    let all = result.variants.iter().flat_map(|variant| &variant.sides);
    let most = all.filter_map(|side| shown.of(side)).map(|at| at.q3);
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let most = match shown {
        Shown::Ratio(_) => most.max(1.0),
        Shown::Value(_) => most,
    };
    let count = result.variants.len();
    let mut chart = ChartBuilder::on(&bottom)
        .margin_left(10)
        .margin_right(20)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..count as f64, 0.0..most * 1.08)?;
    let axis = first.x_label.clone().unwrap_or_default();
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(LINE)
        .x_labels(0)
        .y_labels(6)
        .y_label_formatter(&tick)
        .y_desc(shown.label(base))
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .draw()?;
    for between in 1..count {
        let x = between as f64;
        chart.draw_series([PathElement::new([(x, 0.0), (x, most * 1.08)], LINE)])?;
    }
    if let Shown::Ratio(_) = shown {
        let one = PathElement::new([(0.0, 1.0), (count as f64, 1.0)], BLACK.stroke_width(2));
        chart.draw_series([one])?;
    }
    for (place, &side) in sides.iter().enumerate() {
        let style = colour(side);
        for (number, variant) in result.variants.iter().enumerate() {
            let Some(at) = variant.side(side).and_then(|side| shown.of(side)) else {
                continue;
            };
            let x = number as f64 + (place as f64 + 1.0) / (sides.len() as f64 + 1.0);
            let half = PathElement::new([(x, at.q1), (x, at.q3)], style.stroke_width(3));
            chart.draw_series([half])?;
            chart.draw_series([Circle::new((x, at.median), 5, style.filled())])?;
        }
    }
    // The labels of the axis are the names of the variants. They are not numbers.
    let middle = chart.plotting_area().get_pixel_range();
    let (width, below) = (middle.0.end - middle.0.start, middle.1.end);
    let style = centred(14);
    for (number, variant) in result.variants.iter().enumerate() {
        let x = middle.0.start + width * (2 * number as i32 + 1) / (2 * count as i32);
        root.draw_text(&label(variant), &style, (x, below + 8))?;
    }
    let x = middle.0.start + width / 2;
    root.draw_text(&axis, &style, (x, below + 26))?;
    root.present()?;
    Ok(())
}

fn colour(side: &str) -> RGBColor {
    let known = COLOURS.iter().find(|known| known.0 == side);
    known.map_or(BLACK, |known| known.1)
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

fn legend(
    area: &Area<'_>,
    result: &CaseResult,
    sides: &[&str],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let title = format!("{}: {}", result.case, result.engine);
    area.draw_text(&title, &TextStyle::from((FONT, 16).into_font()), (70, 8))?;
    let style = TextStyle::from((FONT, 13).into_font());
    let mut x = 76;
    for side in sides {
        area.draw(&Circle::new((x, 40), 5, colour(side).filled()))?;
        area.draw_text(side, &style, (x + 10, 33))?;
        x += 30 + side.len() as i32 * 6;
    }
    Ok(())
}
