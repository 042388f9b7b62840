//! Fits the columns of a table into the width of a terminal. This file is pure.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The widths of columns that are naturally this wide, so that they fit into `available` columns of the terminal. The
/// widest of those that are wider than their `least` width is cut first. They do not fit if none is.
pub fn fit<const N: usize>(
    mut widths: [usize; N],
    least: [usize; N],
    available: usize,
) -> [usize; N] {
    while widths.iter().sum::<usize>() > available {
        let cut = widths.iter_mut().zip(least);
        let cut = cut.filter(|(width, least)| **width > *least);
        match cut.max_by_key(|(width, _)| **width) {
            Some((width, _)) => *width -= 1,
            None => break,
        }
    }
    widths
}

/// The text with `…` in the place of its middle, if it is wider than this. Keys that belong together begin alike, and differ
/// at their ends.
pub fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let kept = width.saturating_sub(1);
    let begin = taken(text.chars(), kept - kept / 2);
    let end = taken(text.chars().rev(), kept / 2);
    let end: String = end.chars().rev().collect();
    Cow::Owned(format!("{begin}…{end}"))
}

/// The first characters that fit into this width.
fn taken(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut left = width;
    let fits = |c: &char| {
        let after = left.checked_sub(c.width().unwrap_or(0));
        left = after.unwrap_or(left);
        after.is_some()
    };
    chars.take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_in_its_middle() {
        assert_eq!(cut("report:42", 9), "report:42");
        assert_eq!(cut("tenant-1/report:42", 9), "tena…t:42");
        assert_eq!(cut("锁锁锁锁锁锁", 6), "锁…锁");
        assert_eq!(cut("锁", 1), "…");
        for width in 0..20 {
            assert!(cut("größer 锁 report:42", width).width() <= width.max(1));
        }
    }

    #[test]
    fn the_widest_column_is_cut_first() {
        let least = [8, 16, 8];
        assert_eq!(fit([10, 16, 12], least, 38), [10, 16, 12]);
        assert_eq!(fit([40, 16, 12], least, 40), [12, 16, 12]);
        assert_eq!(fit([40, 16, 30], least, 36), [10, 16, 10]);
        assert_eq!(fit([40, 16, 30], least, 20), [8, 16, 8]);
        assert_eq!(fit([6, 16, 30], least, 20), [6, 16, 8]);
    }
}
