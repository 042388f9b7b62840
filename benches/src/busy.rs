//! A process that keeps the processors busy.

use std::{
    hint::black_box,
    io::{Read, stdin},
    process::Stdio,
    thread,
};

use anyhow::{Context, Result};
use tokio::process::{Child, ChildStdin, Command};

/// Runs busy loops until the standard input ends. The kernel closes that input when the measuring process ends, for
/// whatever reason.
pub fn spin(loops: usize) -> Result<()> {
    for _ in 0..loops {
        // The threads end with the process.
        thread::spawn(|| {
            let mut count = 0_u64;
            loop {
                count = black_box(count.wrapping_add(1));
            }
        });
    }
    stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A busy process, as the measuring process sees it. The process ends when this value is dropped.
pub struct Busy {
    _input: ChildStdin,
    _child: Child,
}

impl Busy {
    /// Starts a process with this many endless loops for each core. It has the priority of the measuring process.
    pub fn start(loops_per_core: usize) -> Result<Self> {
        let loops = loops_per_core * thread::available_parallelism()?.get();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["busy", &loops.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            _input: child.stdin.take().context("no input")?,
            _child: child,
        })
    }
}
