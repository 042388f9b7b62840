//! The lock that a transaction holds against all other connections to the file.
//!
//! On Unix, SQLite's own locks belong to the process: they all end when any code of the process closes any descriptor of
//! the file or of one of the files beside it, for example after it has copied the file. Two processes then write at the
//! same time. So each transaction also locks a file of its own with `flock`. That lock belongs to one descriptor, and
//! ends with this one or with the process.
//!
//! On other systems SQLite's locks belong to a descriptor anyway, and there is no such file.

use std::time::Duration;

#[cfg(unix)]
pub(super) use self::unix::LockFile;

/// How long an operation waits for the write of another process.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What identifies a file independently of its name: the device and the inode. Systems other than Unix have none.
#[cfg(unix)]
pub(super) type Mark = (u64, u64);
#[cfg(not(unix))]
pub(super) type Mark = ();

#[cfg(unix)]
mod unix {
    use std::{
        fs::{self, File, OpenOptions, Permissions},
        io,
        os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
        path::{Path, PathBuf},
        thread,
        time::{Duration, Instant},
    };

    use rustix::{
        fs::{FlockOperation, flock},
        io::Errno,
    };

    use crate::{
        model::{Cause, Error},
        store::sqlite::{
            error::{STORE, unusable},
            lock_file::{BUSY_TIMEOUT, Mark},
        },
    };

    /// The first pause while another connection has the lock. Each pause is twice as long as the one before.
    const FIRST_PAUSE: Duration = Duration::from_micros(250);
    const LONGEST_PAUSE: Duration = Duration::from_millis(4);
    /// The bits of a mode that say who may read, write and execute a file.
    const RIGHTS: u32 = 0o777;

    pub(crate) struct LockFile {
        path: PathBuf,
        file: File,
    }

    /// The lock is held as long as this value is there.
    pub(crate) struct Locked<'a>(&'a File);

    impl LockFile {
        /// Opens the lock file. `None` if there is none. Who may read it may lock it.
        pub(crate) fn existing(path: &Path) -> io::Result<Option<Self>> {
            match File::open(path) {
                Ok(file) => Ok(Some(Self {
                    path: path.to_path_buf(),
                    file,
                })),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        }

        /// Makes the lock file for this file of locks, with the same rights and, if this user may give it away, the
        /// same owner. If another process has made it meanwhile, opens that one.
        pub(crate) fn make(path: &Path, locks: &Path) -> io::Result<Self> {
            let like = fs::metadata(locks)?;
            let made = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(like.mode() & RIGHTS)
                .open(path);
            match made {
                Ok(file) => {
                    // The process may have a mask for the rights of new files.
                    file.set_permissions(Permissions::from_mode(like.mode() & RIGHTS))?;
                    // Only root may give a file to another user, and others only to a group of their own.
                    let _ = fchown(&file, Some(like.uid()), Some(like.gid()))
                        .or_else(|_| fchown(&file, None, Some(like.gid())));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            let gone = || io::Error::new(io::ErrorKind::NotFound, "it was removed");
            Self::existing(path)?.ok_or_else(gone)
        }

        /// The path, and what identifies the file that is locked, whatever the path leads to by now.
        pub(crate) fn marked(&self) -> io::Result<Option<(&Path, Mark)>> {
            let data = self.file.metadata()?;
            Ok(Some((&self.path, (data.dev(), data.ino()))))
        }

        /// Waits for the lock, for as long as SQLite waits for its own.
        pub(crate) fn lock(&self) -> Result<Locked<'_>, Error> {
            let end = Instant::now() + BUSY_TIMEOUT;
            let mut pause = FIRST_PAUSE;
            loop {
                match self.try_lock() {
                    Ok(Some(locked)) => return Ok(locked),
                    Ok(None) if Instant::now() < end => {
                        thread::sleep(pause);
                        pause = (2 * pause).min(LONGEST_PAUSE);
                    }
                    Ok(None) => {
                        return Err(Error::Overloaded {
                            store: STORE,
                            source: Cause::text(format!(
                                "another process has locked {} for {BUSY_TIMEOUT:?}",
                                self.path.display()
                            )),
                        });
                    }
                    Err(error) => return Err(unusable(&self.path, Cause::from(error))),
                }
            }
        }

        /// Takes the lock; `None` if another connection has it.
        pub(crate) fn try_lock(&self) -> io::Result<Option<Locked<'_>>> {
            loop {
                match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => return Ok(Some(Locked(&self.file))),
                    Err(Errno::WOULDBLOCK) => return Ok(None),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    impl Drop for Locked<'_> {
        fn drop(&mut self) {
            // It cannot fail for a lock that is held. A process that was forked meanwhile has the descriptor too, so
            // closing it would not be enough.
            let _ = flock(self.0, FlockOperation::Unlock);
        }
    }
}

#[cfg(not(unix))]
pub(super) use self::other::LockFile;

#[cfg(not(unix))]
mod other {
    use std::{io, path::Path};

    use crate::{model::Error, store::sqlite::lock_file::Mark};

    /// Nothing: SQLite's own locks are enough.
    pub(crate) struct LockFile;

    pub(crate) struct Locked;

    impl LockFile {
        pub(crate) fn existing(_: &Path) -> io::Result<Option<Self>> {
            Ok(Some(Self))
        }

        pub(crate) fn make(_: &Path, _: &Path) -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) fn marked(&self) -> io::Result<Option<(&Path, Mark)>> {
            Ok(None)
        }

        pub(crate) fn lock(&self) -> Result<Locked, Error> {
            Ok(Locked)
        }

        pub(crate) fn try_lock(&self) -> io::Result<Option<Locked>> {
            Ok(Some(Locked))
        }
    }
}
