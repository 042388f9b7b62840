//! The files beside a file of locks: where they are, and what this user may do with them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The files beside a file of locks. Processes with different ones do not see each other's writes.
pub(super) struct Beside {
    /// The file of locks itself, without symbolic links: SQLite derives the names of its files from that.
    pub(super) target: PathBuf,
}

impl Beside {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let target = fs::canonicalize(path)?;
        Ok(Self { target })
    }

    /// SQLite's write-ahead log.
    pub(super) fn log(&self) -> PathBuf {
        self.named("-wal")
    }

    /// The memory that SQLite shares between the processes.
    pub(super) fn memory(&self) -> PathBuf {
        self.named("-shm")
    }

    /// The file that a transaction locks. SQLite does not know of it.
    pub(super) fn lock(&self) -> PathBuf {
        self.named("-lock")
    }

    fn named(&self, end: &str) -> PathBuf {
        let mut name = self.target.clone().into_os_string();
        name.push(end);
        PathBuf::from(name)
    }
}

#[cfg(unix)]
mod unix {
    use std::{
        fs,
        os::unix::fs::MetadataExt,
        path::{Display, Path},
    };

    use rustix::{
        fs::{Access, AtFlags, CWD, accessat},
        io::Errno,
    };

    use crate::{model::Cause, store::sqlite::beside::Beside};

    /// The name of a file beside the file of locks. The message has the path of that one.
    fn name(path: &Path) -> Display<'_> {
        let name = path.file_name().unwrap_or(path.as_os_str());
        Path::new(name).display()
    }

    impl Beside {
        /// Checks the files before SQLite opens them. A user who may only read the file of locks must not make the
        /// files beside it: they would be this user's, and the owner of the file could not write them.
        pub(crate) fn check(&self, may_write: bool) -> Result<(), Cause> {
            let written = if may_write {
                Access::READ_OK | Access::WRITE_OK
            } else {
                Access::READ_OK
            };
            for (path, access) in [
                (self.log(), written),
                (self.memory(), written),
                (self.lock(), Access::READ_OK),
            ] {
                let name = name(&path);
                match accessat(CWD, &path, access, AtFlags::EACCESS) {
                    Err(Errno::NOENT) if !may_write => {
                        return Err(Cause::text(format!(
                            "this user may only read it, and {name} is missing: let a user who may write open it once"
                        )));
                    }
                    Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                        return Err(Cause::text(self.foreign(&path, may_write)));
                    }
                    // SQLite tells of any other problem.
                    _ => {}
                }
            }
            Ok(())
        }

        /// Says whose file this is, and whose it has to be.
        fn foreign(&self, path: &Path, may_write: bool) -> String {
            let owner = |path: &Path| match fs::metadata(path) {
                Ok(data) => format!("user {}", data.uid()),
                Err(_) => "another user".to_owned(),
            };
            let verb = if may_write { "write" } else { "read" };
            format!(
                "{} belongs to {}, and this user may not {verb} it: give it the owner ({}) and the rights of the file",
                name(path),
                owner(path),
                owner(&self.target)
            )
        }
    }
}

#[cfg(not(unix))]
impl Beside {
    pub(super) fn check(&self, _: bool) -> Result<(), crate::model::Cause> {
        Ok(())
    }
}
