//! `watch`: a screen like that of `top`, or a line for each change.

mod draw;
mod lines;
mod rows;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use std::{
    env,
    io::{self, IsTerminal},
};

use leasehold::{Leases, address::Opened};
use ratatui::crossterm::terminal::size;

use super::{
    args::Watch,
    exit::{Code, Failure},
};

/// Shows the locks until somebody or a signal ends it.
pub async fn watch(
    watch: Watch,
    is_verbose: bool,
    leases: &Leases,
    opened: &Opened,
) -> Result<Code, Failure> {
    if watch.interval.is_zero() {
        return Err(Failure::Usage(
            "an interval is longer than nothing".to_owned(),
        ));
    }
    if !watch.json && has_screen(is_verbose) {
        terminal::show(&watch, leases, opened).await
    } else {
        lines::print(&watch, leases).await
    }
}

/// Whether a screen can be drawn, and nothing else writes to it.
fn has_screen(is_verbose: bool) -> bool {
    let is_logged_to = is_verbose && io::stderr().is_terminal();
    let is_dumb = env::var_os("TERM").is_none_or(|name| name == "dumb");
    // A serial line has no size unless somebody has set it.
    let has_size = || matches!(size(), Ok((1.., 1..)));
    io::stdin().is_terminal()
        && io::stdout().is_terminal()
        && !is_logged_to
        && !is_dumb
        && has_size()
}
