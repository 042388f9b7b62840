//! Serves engines to the programs of a run, each started once: `leasehold-engines SOCKET`.
//!
//! They end with its standard input.

use std::{env, path::Path, process::ExitCode};

use leasehold_tests::engine::shared;

fn main() -> ExitCode {
    let Some(socket) = env::args_os().nth(1) else {
        eprintln!("Usage: leasehold-engines SOCKET");
        return ExitCode::from(2);
    };
    match shared::serve(Path::new(&socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engines: {}: {error}", Path::new(&socket).display());
            ExitCode::FAILURE
        }
    }
}
