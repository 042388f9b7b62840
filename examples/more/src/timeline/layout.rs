//! The positions of the labels in a picture, chosen so that no label covers another.

/// The smallest space between a text and what is to the right of it.
const GAP: f64 = 8.0;

/// An upper bound for the width of a text. The pictures use different fonts on different systems. The bound is the
/// width in DejaVu Sans, the widest font that is common.
pub(super) fn width(text: &str, size: f64, bold: bool) -> f64 {
    let em: f64 = text.chars().map(advance).sum();
    em * size * if bold { 1.12 } else { 1.0 }
}

fn advance(character: char) -> f64 {
    match character {
        'i' | 'j' | 'l' | ' ' | '.' | ',' | ':' | '\'' => 0.34,
        'f' | 'r' | 't' | '(' | ')' => 0.42,
        'c' | 'k' | 's' | 'v' | 'x' | 'y' | 'z' | '_' => 0.6,
        'm' | 'w' | 'M' | 'W' | '…' => 1.0,
        'A'..='Z' => 0.79,
        _ => 0.64,
    }
}

/// The row of each flag, a text to the right of a vertical line that ends at its event. Row 0 is next to the events.
///
/// A flag is given by the x of its line and the space that it needs to the right of the line. Its line passes through
/// all rows below its own row. So its text must end before the lines of all later flags in this row and in the rows
/// above. A row above all others is always free, so each flag gets a row. Flags with the same x are placed one above
/// the other, in their order.
pub(super) fn rows(flags: &[(f64, f64)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..flags.len()).collect();
    order.sort_by(|a, b| flags[*b].0.total_cmp(&flags[*a].0).then(b.cmp(a)));
    let mut rows = vec![0; flags.len()];
    // For each row, the x of the nearest line that passes through it or begins in it.
    let mut nearest: Vec<f64> = Vec::new();
    for flag in order {
        let (x, width) = flags[flag];
        let fits = |line: &f64| x + width + GAP <= *line;
        let row = nearest.iter().position(fits).unwrap_or(nearest.len());
        if row == nearest.len() {
            nearest.push(x);
        }
        nearest[..=row].fill(x);
        rows[flag] = row;
    }
    rows
}

/// The largest number of pixels per millisecond with which every text ends within `space`. A text is given by its start
/// time and its width.
pub(super) fn scale(space: f64, texts: impl IntoIterator<Item = (i64, f64)>) -> f64 {
    let of = |(at, width): (i64, f64)| (space - width) / at.max(1) as f64;
    texts.into_iter().map(of).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_goes_up_only_if_it_would_reach_the_next() {
        assert_eq!(rows(&[(0.0, 40.0), (50.0, 40.0)]), [0, 0]);
        assert_eq!(rows(&[(0.0, 60.0), (50.0, 40.0)]), [1, 0]);
        // There is room behind the line of the flag that was moved up.
        assert_eq!(rows(&[(0.0, 20.0), (50.0, 60.0), (90.0, 40.0)]), [0, 1, 0]);
    }

    #[test]
    fn flags_of_one_time_are_read_from_the_top() {
        assert_eq!(rows(&[(10.0, 40.0), (10.0, 40.0), (10.0, 40.0)]), [2, 1, 0]);
    }
}
