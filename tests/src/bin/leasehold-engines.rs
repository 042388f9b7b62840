//! Serves engines to the programs of a run, each started once: `leasehold-engines SOCKET [ENGINE...]`. Those that
//! are named start before anybody asks for them.
//!
//! They end with its standard input.

use std::{env, path::Path, process::ExitCode};

use leasehold_tests::engine::shared;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let Some(socket) = arguments.next() else {
        eprintln!("Usage: leasehold-engines SOCKET [ENGINE...]");
        return ExitCode::from(2);
    };
    match shared::serve(Path::new(&socket), arguments.collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engines: {}: {error}", Path::new(&socket).display());
            ExitCode::FAILURE
        }
    }
}
