//! The memory that the client uses. A separate program counts it, because counting slows down every allocation.

use std::{env, process::Command};

use anyhow::{Context, Result, ensure};

use crate::results::CaseResult;

pub const BYTES: &str = "The memory in use for each held lease, each waiter, and each key that stays idle, on the \
    memory store, from an allocator that counts. The store's own part of a lease is in \
    `leasehold-store`. A waiter is a tokio task; `tokio-task` is one that only waits for a \
    `Notify`.";

pub fn bytes() -> Result<CaseResult> {
    run("memory")
}

pub const ALLOCATIONS: &str = "The allocations of each operation on the memory store, by one task.";

pub fn allocations() -> Result<CaseResult> {
    run("allocations")
}

fn run(case: &str) -> Result<CaseResult> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // The variables that cargo has set for this program are removed. Otherwise the build scripts that read them would
    // run again, and most of the build with them.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    let run = command
        .args(["run", "--quiet", "--profile", "bench", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .args(["--bin", "leasehold-benches-memory", "--", case])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cargo cannot be run")?;
    ensure!(run.status.success(), "the program that counts has failed");
    Ok(serde_json::from_slice(&run.stdout)?)
}
