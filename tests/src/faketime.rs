//! A process with a clock of its own.

use std::{env, path::Path, process::Command};

use crate::project;

/// The path of libfaketime: that in `LEASEHOLD_FAKETIME`, or else that of the library which `scripts/faketime` fetches.
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

/// The environment of a process whose clock is off by this many minutes.
pub fn minutes(off: i32) -> [(&'static str, String); 3] {
    [
        ("LD_PRELOAD", library()),
        ("FAKETIME", format!("{off:+}m")),
        // The clock that measures spans of time stays right.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

/// The environment of a process whose clock is off by what this file says, from the moment when it says so.
pub fn by_file(off: &Path) -> [(&'static str, String); 4] {
    [
        ("LD_PRELOAD", library()),
        ("FAKETIME_TIMESTAMP_FILE", off.display().to_string()),
        // The process reads the file again after this many seconds.
        ("FAKETIME_CACHE_DURATION", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}
