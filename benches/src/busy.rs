//! A process that leaves less of the processors to the others.

use std::{
    hint::black_box,
    io::{Read, stdin},
    process::Stdio,
    thread,
};

use anyhow::{Context, Result};
use tokio::process::{Child, ChildStdin, Command};

/// What such a process does until its input ends, which the kernel sees to when the process that measures
/// ends, however it does.
pub fn spin(loops: usize) -> Result<()> {
    for _ in 0..loops {
        // They end with the process.
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

/// Such a process, seen from the one that measures. It ends when this is dropped.
pub struct Busy {
    _input: ChildStdin,
    _child: Child,
}

impl Busy {
    /// So many endless loops for each core, at the priority of this process.
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
