//! Draws the screen of `watch`. Its texts are made visible before they come here.

use std::{array, borrow::Cow};

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span, Text},
    widgets::{Cell, Row, Table},
};
use unicode_width::UnicodeWidthStr;

use super::{
    rows::{Entry, Lease, Of},
    view::{At, View},
};
use crate::{columns, state, state::Look, text};

/// The column of the marks: `>` for the selected row, and `+` for a new one.
const MARKS: u16 = 3;
/// A key or a name is cut to this width where it stands in a line of text.
const NAMED: usize = 24;
/// A screen with fewer lines has only the table, and the line of the question.
const LOW: u16 = 8;
/// In which order columns are left out of a screen that is too narrow for them.
const LEFT_OUT: [&str; 6] = ["NOTE", "SINCE", "EXPIRES IN", "FENCE", "MODE", "HOLDER"];

const KEYS: &str = "q quit  e evict  s order  arrows, j, k, PgUp, PgDn select";

pub fn draw(frame: &mut Frame, view: &mut View, has_colours: bool) {
    let (two, one) = match frame.area().height {
        ..LOW => (0, 0),
        _ => (2, 1),
    };
    let table = Constraint::Fill(1);
    let [two, one, status] = [two, one, 1].map(Constraint::Length);
    let areas = Layout::vertical([two, table, one, status, one]);
    let [head, table, gone, status, help] = areas.areas(frame.area());
    let width = usize::from(frame.area().width);
    let title = format!("leasehold watch: {}", view.place);
    let title = Line::styled(columns::cut(&title, width), Modifier::BOLD);
    frame.render_widget(Text::from(vec![title, summary(view)]), head);
    draw_table(frame, table, view);
    frame.render_widget(Line::raw(gone_text(&view.gone, width)), gone);
    frame.render_widget(status_line(view, width), status);
    frame.render_widget(Line::styled(KEYS, Modifier::DIM), help);
    if !has_colours {
        // With NO_COLOR crossterm sends an empty sequence for a colour, which ends the reversed video of a row.
        for cell in &mut frame.buffer_mut().content {
            cell.set_fg(Color::Reset);
        }
    }
}

/// When the last look was, and what it found.
fn summary(view: &View) -> Line<'_> {
    let at = match view.looked {
        None => "not seen yet".to_owned(),
        Some(At::Store(at)) => at.format("%F %T UTC").to_string(),
        Some(At::Host(at)) => at.format("%F %T UTC (of this host)").to_string(),
    };
    let [keys, holders, waiters] = view.counts();
    let every = humantime::format_duration(view.interval);
    let order = view.order.name();
    let text = format!(
        "{at}  keys {keys}  holders {holders}  waiting {waiters}  every {every}  order: {order}"
    );
    match view.trouble {
        Some(_) if view.looked.is_some() => {
            Line::from(vec![Span::styled("OLD ", Color::Red), Span::raw(text)])
        }
        _ => Line::raw(text),
    }
}

fn draw_table(frame: &mut Frame, area: Rect, view: &mut View) {
    if view.looked.is_some() && view.entries.is_empty() {
        frame.render_widget(Line::raw("nobody holds anything here"), area);
        return;
    }
    let page = usize::from(area.height.saturating_sub(1));
    view.scroll(page);
    let columns = Columns::fit(view.widths, usize::from(area.width.saturating_sub(MARKS)));
    let shown = view.entries.iter().enumerate().skip(view.top).take(page);
    let rows = shown.map(|(index, entry)| {
        let is_selected = index == view.selected;
        let style = match is_selected {
            true => Style::from(Modifier::REVERSED),
            false => Style::new(),
        };
        let style = match view.trouble {
            Some(_) => style.add_modifier(Modifier::DIM),
            None => style,
        };
        columns.row(entry, is_selected).style(style)
    });
    let header = columns.header().style(Modifier::BOLD);
    let table = Table::new(rows, columns.constraints());
    let table = table.header(header).column_spacing(0);
    frame.render_widget(table, area);
}

/// The columns that are drawn, with their widths and the space after each.
struct Columns {
    shown: Vec<(usize, usize)>,
    padding: usize,
}

impl Columns {
    fn fit(natural: [usize; 7], available: usize) -> Self {
        let whole = Self {
            shown: natural.into_iter().enumerate().collect(),
            padding: state::PADDING.into(),
        };
        let narrow = (0..LEFT_OUT.len()).map(|count| Self::cut(natural, count, available));
        let mut each = [whole].into_iter().chain(narrow);
        let fits = each.find(|columns| columns.width() <= available);
        fits.unwrap_or_else(|| Self::cut(natural, LEFT_OUT.len(), available))
    }

    /// The columns without the first of [`LEFT_OUT`], as narrow as they have to be and can be.
    fn cut(natural: [usize; 7], left_out: usize, available: usize) -> Self {
        let is_shown = |name| !LEFT_OUT.iter().take(left_out).any(|it| *it == name);
        let shown = state::HEADER.map(is_shown);
        let natural: [_; 7] =
            array::from_fn(|column| match (natural.get(column), shown.get(column)) {
                (Some(width), Some(true)) => *width,
                _ => 0,
            });
        let padding = usize::from(state::NARROW_PADDING);
        let between = shown.iter().filter(|it| **it).count() * padding;
        let room = available.saturating_sub(between);
        let widths = columns::fit(natural, state::LEAST, room).into_iter();
        let shown = widths.enumerate().zip(shown).filter(|(_, shown)| *shown);
        Self {
            shown: shown.map(|(column, _)| column).collect(),
            padding,
        }
    }

    fn width(&self) -> usize {
        self.shown
            .iter()
            .map(|(_, width)| width + self.padding)
            .sum()
    }

    fn constraints(&self) -> Vec<Constraint> {
        let width = |width: usize| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX));
        let columns = self.shown.iter();
        let columns = columns.map(|(_, shown)| width(shown + self.padding));
        [Constraint::Length(MARKS)]
            .into_iter()
            .chain(columns)
            .collect()
    }

    fn header(&self) -> Row<'static> {
        let names = self.shown.iter();
        let names = names.filter_map(|(column, _)| state::HEADER.get(*column));
        [""].into_iter().chain(names.copied()).collect()
    }

    fn row<'a>(&self, entry: &'a Entry, is_selected: bool) -> Row<'a> {
        let mark = |is, mark| if is { mark } else { " " };
        let marks = [mark(is_selected, ">"), mark(entry.is_new, "+")];
        let marks = Cell::new(marks.concat()).style(Color::Green);
        let cells = self.shown.iter().filter_map(|(column, width)| {
            let text = columns::cut(entry.row.cells.get(*column)?, *width);
            Some(Cell::new(text).style(colour(entry.row.look, *column)))
        });
        [marks].into_iter().chain(cells).collect()
    }
}

fn colour(look: Look, column: usize) -> Style {
    match look {
        Look::Grey => Color::DarkGray.into(),
        Look::Warned if state::HEADER.get(column) == Some(&"EXPIRES IN") => Color::Yellow.into(),
        Look::Warned | Look::Plain => Style::new(),
    }
}

/// What the last look did not find any more, as much as fits, and how many more there are.
fn gone_text(gone: &[Entry], width: usize) -> String {
    let mut text = String::new();
    for (index, entry) in gone.iter().enumerate() {
        let (key, owner) = (named(entry.key.as_str()), named(&entry.owner));
        let what = match entry.of {
            Of::Lease(_, fence) => format!("{key} ({owner}, fence {fence})"),
            Of::Place(_) => format!("{key} ({owner}, waited)"),
        };
        let longer = match index {
            0 => format!("gone: {what}"),
            _ => format!("{text}, {what}"),
        };
        let rest = match gone.len() - index - 1 {
            0 => String::new(),
            rest => format!(", and {rest} more"),
        };
        if longer.width() + rest.width() > width {
            return match index {
                0 => format!("gone: {}", gone.len()),
                _ => format!("{text}, and {} more", gone.len() - index),
            };
        }
        text = longer;
    }
    text
}

fn named(name: &str) -> String {
    columns::cut(&text::visible(name), NAMED).into_owned()
}

/// The question; otherwise what came of the last key, and why the table is old.
fn status_line(view: &View, width: usize) -> Line<'static> {
    if let Some(lease) = &view.question {
        return Line::styled(question(lease, width), Modifier::BOLD);
    }
    let said = [view.message.as_deref(), view.trouble.as_deref()];
    let said = said.into_iter().flatten().map(text::visible);
    Line::raw(said.collect::<Vec<_>>().join("; "))
}

/// The question, with as much of the names as fits. Its end is never cut off by a name.
fn question(lease: &Lease, width: usize) -> String {
    let names = [&*lease.owner, lease.key.as_str()].map(text::visible);
    let fence = lease.fence;
    let of = |owner: &str, key: &str| {
        format!("evict the lease of {owner} on {key} (fence {fence})? y/n")
    };
    let room = width.saturating_sub(of("", "").width());
    let natural = array::from_fn(|name| names.get(name).map_or(0, |name: &Cow<_>| name.width()));
    let [owner_width, key_width] = columns::fit(natural, [4, 4], room);
    if owner_width + key_width > room {
        return format!("evict fence {fence}? y/n");
    }
    let [owner, key] = &names;
    of(
        &columns::cut(owner, owner_width),
        &columns::cut(key, key_width),
    )
}
