//! A C library that a process loads before all others, so that its functions replace those of the others.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use tokio::process::Command;

/// Compiles a library into this folder. The returned path is for `LD_PRELOAD`.
pub async fn compiled(folder: &Path, source: &str) -> Result<PathBuf> {
    let (file, library) = (folder.join("preload.c"), folder.join("preload.so"));
    fs::write(&file, source)?;
    // Rust links with a C compiler, so there is one.
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
    let status = compiler.arg(&library).arg(&file).arg("-ldl").status();
    let status = status
        .await
        .context("no C compiler: install the package gcc")?;
    anyhow::ensure!(status.success(), "{status}");
    Ok(library)
}
