//! A library in C that a process loads before its own ones, so that it calls this one's functions in their place.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use tokio::process::Command;

/// Compiles a library to this folder. The path is for `LD_PRELOAD`.
pub async fn compiled(folder: &Path, source: &str) -> Result<PathBuf> {
    let (file, library) = (folder.join("preload.c"), folder.join("preload.so"));
    fs::write(&file, source)?;
    // The linker of Rust is one, so there is one.
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
    let status = compiler.arg(&library).arg(&file).arg("-ldl").status();
    let status = status
        .await
        .context("no C compiler: install the package gcc")?;
    anyhow::ensure!(status.success(), "{status}");
    Ok(library)
}
