//! Detects that an open file of locks, or one of the files beside it, was replaced.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    beside::Beside,
    lock_file::{LockFile, Mark},
};
use crate::model::Cause;

/// The file and the files beside it, each with its mark when it was opened.
pub(super) struct Identity(Vec<(PathBuf, Mark)>);

impl Identity {
    /// Reads the marks. SQLite must have read the file before, so that the files beside it exist.
    pub(super) fn of(path: &Path, beside: &Beside, lock: &LockFile) -> Result<Self, Cause> {
        let mut files = Vec::new();
        for path in [path.to_path_buf(), beside.log(), beside.memory()] {
            let mark = mark(&path)?;
            files.push((path, mark));
        }
        if let Some((path, mark)) = lock.marked()? {
            files.push((path.to_path_buf(), mark));
        }
        Ok(Self(files))
    }

    /// Fails if one of the files was removed or replaced: another process that opens the path would then not see the
    /// leases in this file, or have another lock. Called under the lock, because only then it also tells that no other
    /// process has another one.
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

/// The mark of a file. Fails if the file has a hard link: the name of the log comes from the name of the file, so a
/// process that opens the file by the other name has another log.
#[cfg(unix)]
pub(super) fn mark(path: &Path) -> Result<Mark, Cause> {
    use std::os::unix::fs::MetadataExt;

    let data = fs::metadata(path).map_err(|error| unseen(path, &error))?;
    if data.is_file() && data.nlink() > 1 {
        let text = "it has another name, a hard link: remove that one, or lock in a copy";
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
