//! What the client has of the memory. Counting it slows every allocation, so a program of its own does it.

use std::{env, process::Command};

use anyhow::{Context, Result, ensure};

use crate::results::CaseResult;

pub fn bytes() -> Result<CaseResult> {
    run("memory")
}

pub fn allocations() -> Result<CaseResult> {
    run("allocations")
}

fn run(case: &str) -> Result<CaseResult> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo told this program about itself: build scripts that look at it would run again, and with
    // them most of the build.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    let run = command
        .args(["run", "--quiet", "--release", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .args(["--bin", "leasehold-benches-memory", "--", case])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cargo cannot be run")?;
    ensure!(run.status.success(), "the program that counts has failed");
    Ok(serde_json::from_slice(&run.stdout)?)
}
