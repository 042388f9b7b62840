//! `--verbose`: the events of the library on standard error.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{filter::Targets, fmt, prelude::*, registry};

/// Writes the events of the library to standard error from now on. They contain no credentials, which those of the
/// clients of the databases might.
pub fn begin() {
    let library = Targets::new().with_target("leasehold", LevelFilter::DEBUG);
    let lines = fmt::layer().with_writer(io::stderr).with_target(false);
    let lines = lines.with_ansi(io::stderr().is_terminal());
    registry().with(lines.with_filter(library)).init();
}
