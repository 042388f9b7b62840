//! A picture: the lanes of a run one below the other, over an axis of seconds.

use std::ops::Range;

use super::{
    Run,
    canvas::{Area, Canvas, Font},
    lanes::{Bar, Beside, Detail, Flag, Lane, Look, Write, Writer, lanes, seconds},
    layout::{rows, scale},
    theme::Theme,
};

const WIDTH: f64 = 800.0;
const NAMES: f64 = 12.0;
const PLOT: Range<f64> = 108.0..788.0;
const BAR: f64 = 28.0;
const ROW: f64 = 18.0;
/// The smallest space above the bars of a lane.
const SPACE: f64 = 16.0;
/// The smallest length of an arrow.
const ARROW: f64 = 30.0;

const TITLE: &str =
    "A holder is paused past its expiry, and its late write is refused by its fence";

pub(super) fn draw(run: &Run, detail: Detail, theme: &Theme) -> String {
    let (canvas, height) = lay_out(run, detail, theme);
    canvas.finish((WIDTH, height), TITLE, &description(run))
}

fn description(run: &Run) -> String {
    format!(
        "A run on MongoDB with a ttl of {}. Process A is granted the lease with fence {}, and writes at {}. It is \
         paused at {}, and its lease expires at {}. Process B is granted the lease with fence {} at {}, and writes at \
         {}. Process A runs again at {}. Its write is refused with Error::Fenced at {}.",
        seconds(run.ttl),
        run.fence_a,
        seconds(run.a_wrote),
        seconds(run.a_paused),
        seconds(run.a_expired),
        run.fence_b,
        seconds(run.b_granted),
        seconds(run.b_wrote),
        seconds(run.a_resumed),
        seconds(run.a_refused)
    )
}

/// The drawing and its height.
fn lay_out<'a>(run: &Run, detail: Detail, theme: &'a Theme) -> (Canvas<'a>, f64) {
    let lanes = lanes(run, detail, theme);
    let flags = lanes.iter().flat_map(|lane| &lane.flags);
    let ends = flags.map(|flag| (flag.at, width(flag)));
    let mut picture = Picture {
        canvas: Canvas::new(theme),
        theme,
        scale: scale(PLOT.end - PLOT.start, ends.chain([(run.b_released, 0.0)])),
    };

    // The rows of the flags of each lane, and the top of the lane's bars.
    let mut bottom = 0.0;
    let mut places = Vec::new();
    for lane in &lanes {
        let flags = lane.flags.iter();
        let rows = rows(
            &flags
                .map(|flag| (picture.x(flag.at), width(flag)))
                .collect::<Vec<_>>(),
        );
        let count = rows.iter().max().map_or(0, |row| row + 1);
        let least = if lane.writes.is_empty() { SPACE } else { ARROW };
        let top = bottom + (count as f64 * ROW + 12.0).max(least);
        places.push((rows, top));
        bottom = top + BAR;
    }

    let axis = bottom + 12.0;
    picture.draw_axis(run, axis);
    // The line of the expiry goes from the lock down through all lanes.
    let expiry = picture.x(run.a_expired);
    let of_lock = places.first().map_or(0.0, |(_, top)| top + BAR);
    let dashes = r#" stroke-dasharray="2 3""#;
    picture
        .canvas
        .grid((expiry, of_lock), (expiry, axis), dashes);
    let mut above = 0.0;
    for (lane, (rows, top)) in lanes.iter().zip(&places) {
        picture.draw_name(lane, *top);
        picture.draw_bars(&lane.bars, *top);
        for (flag, row) in lane.flags.iter().zip(rows) {
            picture.draw_flag(flag, *row, *top);
        }
        for write in &lane.writes {
            picture.draw_write(write, above, *top);
        }
        above = top + BAR;
    }
    (picture.canvas, axis + 26.0)
}

/// The space between the time of a flag and its text.
fn indent(flag: &Flag) -> f64 {
    match flag.beside {
        Beside::Cross => 16.0,
        Beside::Line | Beside::Other => 5.0,
    }
}

/// The space that a flag needs to the right of its time.
fn width(flag: &Flag) -> f64 {
    indent(flag) + flag.font.width(&flag.text)
}

struct Picture<'a> {
    canvas: Canvas<'a>,
    theme: &'a Theme,
    /// Pixels per millisecond.
    scale: f64,
}

impl Picture<'_> {
    fn x(&self, at: i64) -> f64 {
        PLOT.start + at as f64 * self.scale
    }

    fn draw_axis(&mut self, run: &Run, axis: f64) {
        let font = Font {
            size: 12.0,
            bold: false,
            colour: self.theme.muted,
        };
        let end = self.x(run.b_released);
        self.canvas.grid((PLOT.start, axis), (end, axis), "");
        let ttl = format!("ttl {} s", run.ttl as f64 / 1000.0);
        self.canvas.text(NAMES, axis + 13.0, font, &ttl);
        // The first of these steps is used with which the numbers do not touch each other.
        let steps = [1, 2, 5, 10, 20, 50, 100, 200, 500];
        let step = steps
            .into_iter()
            .find(|step| self.scale * (step * 1000) as f64 >= 45.0);
        let mut second = 0;
        while let Some(step) = step
            && second * 1000 <= run.b_released
        {
            let (at, number) = (self.x(second * 1000), format!("{second} s"));
            self.canvas.grid((at, axis), (at, axis + 5.0), "");
            if at + font.width(&number) <= WIDTH - 4.0 {
                self.canvas.text(at, axis + 13.0, font, &number);
            }
            second += step;
        }
    }

    fn draw_name(&mut self, lane: &Lane, top: f64) {
        let middle = top + BAR / 2.0;
        let name = Font {
            size: 14.0,
            bold: true,
            colour: self.theme.text,
        };
        let place = Font {
            size: 12.0,
            bold: false,
            colour: self.theme.muted,
        };
        if lane.place.is_empty() {
            self.canvas.text(NAMES, middle, name, lane.name);
        } else {
            self.canvas.text(NAMES, middle - 8.0, name, lane.name);
            self.canvas.text(NAMES, middle + 8.0, place, lane.place);
        }
    }

    fn draw_bars(&mut self, bars: &[Bar], top: f64) {
        let theme = self.theme;
        for bar in bars {
            let area = self.area(bar, top);
            match bar.look {
                Look::Solid => self.canvas.bar(area, bar.colours.solid),
                Look::Tinted => self.canvas.bar(area, bar.colours.tint),
                Look::Dashed => self.canvas.outline(area, bar.colours.solid),
                Look::Margin => self.canvas.overlay(area, theme.margin),
            }
        }
        for bar in bars {
            let font = Font {
                size: 14.0,
                bold: false,
                colour: match bar.look {
                    Look::Solid => theme.background,
                    Look::Tinted => bar.colours.text,
                    Look::Dashed | Look::Margin => theme.muted,
                },
            };
            let Area { left, right, .. } = self.area(bar, top);
            let fits = |text: &&String| font.width(text) <= right - left - 16.0;
            if let Some(text) = bar.texts.iter().find(fits) {
                self.canvas.text(left + 8.0, top + BAR / 2.0, font, text);
            }
        }
    }

    fn area(&self, bar: &Bar, top: f64) -> Area {
        Area {
            left: self.x(bar.time.start),
            top,
            right: self.x(bar.time.end),
            bottom: top + BAR,
        }
    }

    fn draw_flag(&mut self, flag: &Flag, row: usize, top: f64) {
        let (x, middle) = (self.x(flag.at), top - 5.0 - (row as f64 + 0.5) * ROW);
        if flag.beside == Beside::Line {
            let upper = middle - ROW / 2.0 + 3.0;
            self.canvas.line(x, upper, top, 1.0, self.theme.muted);
        }
        let left = x + indent(flag);
        self.canvas.label(left, middle, flag.font, &flag.text);
    }

    /// Draws the arrow of a write, from the bars above, which end at `above`, to the bars below `top`, or in the
    /// opposite direction.
    fn draw_write(&mut self, write: &Write, above: f64, top: f64) {
        let x = self.x(write.at);
        match write.by {
            Writer::A => self.canvas.arrow(x, above, top, self.theme.a.solid),
            Writer::B => self.canvas.arrow(x, top, above, self.theme.b.solid),
            Writer::Late => {
                let colour = self.theme.refused;
                self.canvas.line(x, above, top - 14.0, 3.0, colour);
                self.canvas.cross(x, top - 14.0, colour);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::theme::LIGHT;

    /// A run whose times are in order, with these gaps between them.
    fn run(gaps: [i64; 13]) -> Run {
        let mut sum = 0;
        let times = gaps.map(|gap| {
            sum += gap;
            sum
        });
        Run {
            ttl: 2000,
            fence_a: 1_795_377_369_395,
            fence_b: 1_795_377_372_747,
            a_wrote: times[0],
            a_renewed: vec![times[1], times[2]],
            a_paused: times[3],
            b_asked: times[4],
            a_deadline: times[5],
            a_expired: times[6],
            b_granted: times[7],
            b_wrote: times[8],
            a_resumed: times[9],
            a_lost: times[10],
            a_refused: times[11],
            b_released: times[12],
        }
    }

    fn overlap(a: &Area, b: &Area) -> bool {
        a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom
    }

    fn check(run: &Run) {
        run.check().unwrap();
        for detail in [Detail::Brief, Detail::Full] {
            let (canvas, height) = lay_out(run, detail, &LIGHT);
            for (index, (text, area)) in canvas.texts.iter().enumerate() {
                let about = || format!("{text:?} in {detail:?} of {run:?}");
                let inside = area.left >= 0.0 && area.right <= WIDTH;
                assert!(
                    inside && area.top >= 0.0 && area.bottom <= height,
                    "{}",
                    about()
                );
                for line in &canvas.lines {
                    assert!(!overlap(area, line), "a line covers {}", about());
                }
                for (other, of_other) in &canvas.texts[..index] {
                    assert!(!overlap(area, of_other), "{other:?} covers {}", about());
                }
            }
        }
    }

    #[test]
    fn no_text_covers_another_or_a_line_at_any_timing() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let mut gap = || *random.choice(&[0, 1, 7, 40, 300, 2000, 9000]).unwrap();
            check(&run(std::array::from_fn(|_| gap())));
        }
        check(&run([0; 13]));
        check(&run([60_000; 13]));
    }
}
