//! Serves engines to the programs of a run, and starts each engine once: `leasehold-engines SOCKET [ENGINE...]`. The
//! engines that are named start before a program asks for them.
//!
//! The engines end when the standard input of this program ends.

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
