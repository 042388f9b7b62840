//! A process with a clock of its own.

use std::{env, process::Command};

use crate::project;

/// The library that does it: the path in `LEASEHOLD_FAKETIME`, else what `scripts/faketime` fetches.
fn library() -> String {
    env::var("LEASEHOLD_FAKETIME").unwrap_or_else(|_| {
        let script = project().join("scripts/faketime");
        let fetched = Command::new(&script).output().unwrap();
        assert!(
            fetched.status.success(),
            "no libfaketime for the tests: {}\nSet LEASEHOLD_FAKETIME to the path of the library.",
            String::from_utf8_lossy(&fetched.stderr)
        );
        String::from_utf8(fetched.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    })
}

/// The environment of a process whose clock is off by so many minutes.
pub fn minutes(off: i32) -> [(&'static str, String); 3] {
    [
        ("LD_PRELOAD", library()),
        ("FAKETIME", format!("{off:+}m")),
        // What measures spans of time goes on as it does.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}
