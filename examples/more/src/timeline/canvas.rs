//! The elements of an SVG, and the areas of its texts and lines.

use std::fmt::{Arguments, Write};

use super::{
    layout::width,
    theme::{FONTS, Theme},
};

#[derive(Clone, Copy)]
pub(super) struct Font {
    pub(super) size: f64,
    pub(super) bold: bool,
    pub(super) colour: &'static str,
}

impl Font {
    pub(super) fn width(self, text: &str) -> f64 {
        width(text, self.size, self.bold)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

pub(super) struct Canvas<'a> {
    theme: &'a Theme,
    body: String,
    /// Each text, and the area that it may need.
    pub(super) texts: Vec<(String, Area)>,
    /// The lines that no text may cover.
    pub(super) lines: Vec<Area>,
}

impl<'a> Canvas<'a> {
    pub(super) fn new(theme: &'a Theme) -> Self {
        Self {
            theme,
            body: String::new(),
            texts: Vec::new(),
            lines: Vec::new(),
        }
    }

    fn put(&mut self, element: Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// A text that begins at `x`, with its middle at `y`.
    pub(super) fn text(&mut self, x: f64, y: f64, font: Font, text: &str) {
        self.put_text((x, y), font, text, escaped(text), "");
    }

    /// A text that hides the grid behind it. If it begins with a time, that has the muted colour.
    pub(super) fn label(&mut self, x: f64, y: f64, font: Font, text: &str) {
        let content = match text.split_once(" s ") {
            Some((time, rest)) if !font.bold && time.parse::<f64>().is_ok() => {
                let muted = self.theme.muted;
                format!(
                    r#"<tspan fill="{muted}">{time} s</tspan> {}"#,
                    escaped(rest)
                )
            }
            _ => escaped(text),
        };
        let halo = format!(
            r#" stroke="{}" stroke-width="4" stroke-linejoin="round" paint-order="stroke""#,
            self.theme.background
        );
        self.put_text((x, y), font, text, content, &halo);
    }

    fn put_text(&mut self, at: (f64, f64), font: Font, text: &str, content: String, style: &str) {
        let ((x, y), Font { size, bold, colour }) = (at, font);
        let weight = if bold { r#" font-weight="600""# } else { "" };
        let base = y + size * 0.35;
        self.put(format_args!(
            r#"<text x="{x:.1}" y="{base:.1}" font-size="{size}"{weight} fill="{colour}"{style}>{content}</text>"#
        ));
        let area = Area {
            left: x,
            top: y - size * 0.55,
            right: x + font.width(text),
            bottom: y + size * 0.55,
        };
        self.texts.push((text.to_owned(), area));
    }

    /// A filled area.
    pub(super) fn bar(&mut self, area: Area, colour: &str) {
        self.rect(area, format_args!(r#"rx="3" fill="{colour}""#));
    }

    /// A dashed outline.
    pub(super) fn outline(&mut self, area: Area, colour: &str) {
        let inner = Area {
            left: area.left + 0.75,
            top: area.top + 0.75,
            right: area.right - 0.75,
            bottom: area.bottom - 0.75,
        };
        let fill = self.theme.background;
        let style = format!(r#"rx="3" fill="{fill}" stroke="{colour}""#);
        self.rect(
            inner,
            format_args!(r#"{style} stroke-width="1.5" stroke-dasharray="4 3""#),
        );
    }

    /// A translucent area.
    pub(super) fn overlay(&mut self, area: Area, colour: &str) {
        self.rect(area, format_args!(r#"fill="{colour}" fill-opacity="0.45""#));
    }

    fn rect(&mut self, area: Area, style: Arguments<'_>) {
        let Area { left, top, .. } = area;
        let (width, height) = ((area.right - left).max(0.5), area.bottom - top);
        self.put(format_args!(
            r#"<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}" {style}/>"#
        ));
    }

    /// A vertical line that no text may cover.
    pub(super) fn line(&mut self, x: f64, from: f64, to: f64, thick: f64, colour: &str) {
        self.put(format_args!(
            r#"<path d="M{x:.1} {from:.1}V{to:.1}" stroke="{colour}" stroke-width="{thick}"/>"#
        ));
        self.lines.push(Area {
            left: x - thick / 2.0,
            top: from.min(to),
            right: x + thick / 2.0,
            bottom: from.max(to),
        });
    }

    /// A vertical arrow that no text may cover.
    pub(super) fn arrow(&mut self, x: f64, from: f64, to: f64, colour: &str) {
        let head = (to - from).signum() * 8.0;
        self.line(x, from, to - head, 2.0, colour);
        let (left, base) = (x - 4.5, to - head);
        self.put(format_args!(
            r#"<path d="M{left:.1} {base:.1}h9L{x:.1} {to:.1}z" fill="{colour}"/>"#
        ));
    }

    /// A disc with a cross, which no text may cover.
    pub(super) fn cross(&mut self, x: f64, y: f64, colour: &str) {
        let (left, top, background) = (x - 4.0, y - 4.0, self.theme.background);
        self.put(format_args!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="10" fill="{colour}"/>"#
        ));
        self.lines.push(Area {
            left: x - 10.0,
            top: y - 10.0,
            right: x + 10.0,
            bottom: y + 10.0,
        });
        let style = format!(r#"stroke="{background}" stroke-width="2.5" stroke-linecap="round""#);
        self.put(format_args!(
            r#"<path d="M{left:.1} {top:.1}l8 8m0 -8l-8 8" {style}/>"#
        ));
    }

    /// A line of the grid: texts and bars are drawn over it.
    pub(super) fn grid(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let ((x, y), (to_x, to_y)) = (from, to);
        let colour = self.theme.line;
        self.put(format_args!(
            r#"<path d="M{x:.1} {y:.1}L{to_x:.1} {to_y:.1}" stroke="{colour}"{style}/>"#
        ));
    }

    /// The whole SVG, with a title and a description for screen readers.
    pub(super) fn finish(&self, size: (f64, f64), title: &str, description: &str) -> String {
        let (width, height) = size;
        let (title, description) = (escaped(title), escaped(description));
        let (background, body) = (self.theme.background, &self.body);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-labelledby="title description" font-family="{FONTS}">
<title id="title">{title}</title>
<desc id="description">{description}</desc>
<rect width="100%" height="100%" rx="6" fill="{background}"/>
{body}</svg>
"#
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
