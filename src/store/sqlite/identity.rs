//! Which files stand behind a path, and whether they are still those that were opened.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::model::Cause;

/// What SQLite keeps beside a file, from the first read of a connection until the last one is closed: the
/// log, and the memory that processes share. Who has others does not see what is written here.
const BESIDE: [&str; 2] = ["-wal", "-shm"];

/// What tells a file from another of the same name, where there is something.
#[cfg(unix)]
type Mark = (u64, u64);
#[cfg(not(unix))]
type Mark = ();

/// The file and those beside it, as they were found.
pub(super) struct Identity(Vec<(PathBuf, Mark)>);

impl Identity {
    /// Of a file that SQLite has begun to read.
    pub(super) fn of(path: &Path) -> Result<Self, Cause> {
        // SQLite goes by the name that a symbolic link leads to.
        let target = fs::canonicalize(path).map_err(|error| unseen(path, &error))?;
        let beside = BESIDE.map(|end| {
            let mut name = target.clone().into_os_string();
            name.push(end);
            PathBuf::from(name)
        });
        let paths = [path.to_path_buf()].into_iter().chain(beside);
        let marked = paths.map(|path| mark(&path).map(|mark| (path, mark)));
        marked.collect::<Result<_, _>>().map(Self)
    }

    /// Somebody who removed a file, or put another in its place, would have others lock there what is held
    /// here.
    pub(super) fn check(&self) -> Result<(), Cause> {
        for (path, before) in &self.0 {
            if mark(path)? != *before {
                let text = format!("{} was replaced by another: open it again", path.display());
                return Err(Cause::text(text));
            }
        }
        Ok(())
    }
}

/// Refuses a file with a second name: the log follows the name, so who uses the other has another log.
#[cfg(unix)]
pub(super) fn mark(path: &Path) -> Result<Mark, Cause> {
    use std::os::unix::fs::MetadataExt;

    let data = fs::metadata(path).map_err(|error| unseen(path, &error))?;
    if data.is_file() && data.nlink() > 1 {
        let text = format!(
            "{} has another name, a hard link: remove that one, or lock in a copy",
            path.display()
        );
        return Err(Cause::text(text));
    }
    Ok((data.dev(), data.ino()))
}

#[cfg(not(unix))]
pub(super) fn mark(path: &Path) -> Result<Mark, Cause> {
    fs::metadata(path)
        .map(drop)
        .map_err(|error| unseen(path, &error))
}

fn unseen(path: &Path, error: &io::Error) -> Cause {
    Cause::text(format!("{}: {error}", path.display()))
}
