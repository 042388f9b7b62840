//! Locks and limiters in a file, for the processes of one host.

mod beside;
mod clock;
mod error;
mod file;
mod group;
mod identity;
mod lock_file;
mod opening;
mod table;

use std::{
    fmt,
    path::{self, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use self::{
    error::unusable,
    file::File,
    group::{SharedFile, blocking},
    opening::Make,
    table::{LIMITERS, LOCKS, Table, Text, Transaction},
};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, Eviction, GiveBackRequest,
        ListRequest, Page, PermitAnswer, PermitRequest, ReleaseAnswer, ReleaseRequest,
        RenewAnswers, RenewRequest,
    },
    model::{Error, Key, LeaseId, LockRecord, LockState, PermitsLeft, Quota},
    rules::{self, Decision},
    store::Store,
};

/// Keeps locks in an SQLite file, for any number of processes of one host, without a server.
///
/// # What it guarantees
///
/// - An acknowledged grant is on the disk: it survives a crash of the process or the host, and a loss of power. A
///   process that is killed in the middle of an operation leaves no half of it. Its leases stay until their ttl is
///   over.
/// - The host's clock decides when a lease expires. On Linux it is the time since the boot, including suspensions,
///   added to a time of day that the file keeps. All processes of the host have the same time, and it never goes back,
///   even if somebody sets the time of day or the host boots with a wrong one. On other systems it is the time of day,
///   and stands still if that goes back.
/// - Other code of the process may open, read and close the files, for example to copy them. On Unix that ends SQLite's
///   own locks, so each operation also locks a file beside them, which no other code can unlock.
/// - Each operation is atomic. Operations that wait for the file at the same time are committed together, in one
///   transaction on a thread of tokio's blocking pool, because each commit waits for the disk. A transaction waits up to
///   five seconds for those of other processes. Other processes are not notified of a release: the first of their
///   waiters polls at least once a second.
///
/// # The file
///
/// The file is for one host: SQLite's write-ahead log does not work on a network file system
/// (<https://sqlite.org/wal.html>). Three more files are beside it, whose names end with `-wal`, `-shm` and `-lock`. All
/// four belong together. Do not remove, replace or hard link any of them while a process has the file open: operations
/// then fail with [`Error::File`].
///
/// If containers share the file, mount its folder and not the file alone. Otherwise the other files are not shared, and
/// each container grants leases that the others hold.
///
/// A clone shares the connection.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Leases, SqliteStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # std::env::set_current_dir(&folder)?;
/// let leases = Leases::new(SqliteStore::open("locks.db").await?);
/// let lease = leases.acquire("nightly", Duration::from_secs(30)).await?;
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    path: Arc<PathBuf>,
    file: SharedFile,
    clock_margin: Duration,
}

impl SqliteStore {
    /// Opens a file of locks, and creates it if it does not exist. Its folder must exist.
    ///
    /// # Errors
    ///
    /// [`Error::File`] if the file cannot be opened, read or written, has a hard link, or is not a file of locks;
    /// [`Error::Overloaded`] if it has to be written and another process writes for too long; [`Error::NoRuntime`]
    /// outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. A file that was created stays, and the next call opens it.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::opened(path.as_ref(), Make::IfMissing).await
    }

    /// Opens an existing file of locks, and never creates one: for tools that only read, and whose path may be
    /// mistyped.
    ///
    /// A user who may only read the file, and the files beside it, can look at the locks. That changes nothing. If one of
    /// these files is missing, it is refused, because the missing file would be this user's, and the owner could not write
    /// it.
    ///
    /// # Errors
    ///
    /// As for [`SqliteStore::open`]; and [`Error::File`] if the file does not exist or is empty, or if this user may only
    /// read it and a file beside it is missing.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn open_existing(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::opened(path.as_ref(), Make::Never).await
    }

    async fn opened(path: &Path, make: Make) -> Result<Self, Error> {
        // The working directory of the process may change while the file is open.
        let absolute = path::absolute(path).map_err(|error| unusable(path, error.into()))?;
        let path = Arc::new(absolute);
        let opened = path.clone();
        let file = blocking(move || File::open(&opened, make)).await?;
        Ok(Self {
            path,
            clock_margin: file.clock_margin(),
            file: SharedFile::new(file),
        })
    }

    /// The absolute path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a lock, applies a rule to it, and writes the result.
    async fn decide<A: Send + 'static>(
        &self,
        key: &Key,
        rule: impl FnOnce(Option<&LockRecord>, DateTime<Utc>) -> Decision<A> + Send + 'static,
    ) -> Result<A, Error> {
        let key = key.clone();
        self.file
            .change(move |change| change.decide(&LOCKS, key.as_str(), &key, rule))
            .await
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn clock_margin(&self) -> Duration {
        self.clock_margin
    }

    fn name(&self) -> String {
        format!("SQLite ({})", self.path.display())
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let asked = request.clone();
        let rule = move |lock: Option<&LockRecord>, now| rules::acquire(lock, &asked, now);
        self.decide(&request.key, rule).await?
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        let rule = move |lock: Option<&LockRecord>, now| rules::leave(lock, waiter, now);
        self.decide(key, rule).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let requests = requests.to_vec();
        let renew = move |change: &mut Transaction<'_>| {
            let mut answers = Vec::with_capacity(requests.len());
            for request in &requests {
                let rule = |lock: Option<&LockRecord>, now| rules::renew(lock, request, now);
                match change.decide(&LOCKS, request.key.as_str(), &request.key, rule) {
                    // The renewals before this one are undone too.
                    Err(error) if change.is_undone() => return Err(error),
                    answer => answers.push(answer),
                }
            }
            Ok(answers)
        };
        self.file.change(renew).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        let asked = request.clone();
        let rule = move |lock: Option<&LockRecord>, now| rules::convert(lock, &asked, now);
        self.decide(&request.key, rule).await?
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let asked = request.clone();
        let rule = move |lock: Option<&LockRecord>, now| rules::release(lock, &asked, now);
        self.decide(&request.key, rule).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        let key = key.clone();
        let inspect = move |read: &Transaction<'_>| {
            let lock = read.read(&LOCKS, key.as_str(), &key)?;
            Ok(lock.map(|(_, lock)| rules::inspect(&lock, read.now)))
        };
        self.file.read(inspect).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let request = request.clone();
        self.file.read(move |read| read.page(&request)).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.decide(key, rules::evict).await?
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        let rule =
            |lock: Option<&LockRecord>, now| rules::remove_expired(lock, Duration::ZERO, now);
        self.decide(key, rule).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let request = request.clone();
        let permit = move |change: &mut Transaction<'_>| {
            let key = &request.key;
            let name = limiter_name(key, &request.quota);
            change.decide(&LIMITERS, &name, key, |limiter, now| {
                rules::permit(limiter, &request, now)
            })
        };
        self.file.change(permit).await
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        let (key, quota) = (key.clone(), *quota);
        let peek = move |read: &Transaction<'_>| {
            let limiter = read.read(&LIMITERS, &limiter_name(&key, &quota), &key)?;
            let limiter = limiter.map(|(_, limiter)| limiter);
            Ok(rules::peek(limiter.as_ref(), &quota, read.now))
        };
        self.file.read(peek).await
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        let request = request.clone();
        let give_back = move |change: &mut Transaction<'_>| {
            let key = &request.key;
            let name = limiter_name(key, &request.quota);
            change.decide(&LIMITERS, &name, key, |limiter, now| {
                rules::give_back(limiter, &request, now)
            })
        };
        self.file.change(give_back).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        let locks = self.purge_table(&LOCKS, move |lock, now| {
            rules::remove_expired(Some(lock), retention, now).answer
        });
        let limiters = self.purge_table(&LIMITERS, move |limiter, now| {
            rules::is_over(limiter, retention, now)
        });
        Ok(locks.await? + limiters.await?)
    }
}

/// The name of a limiter. A key has one for each kind and length of windows, so the name contains both.
fn limiter_name(key: &Key, quota: &Quota) -> String {
    format!("{}:{}:{key}", quota.kind(), quota.window_millis())
}

impl SqliteStore {
    /// Removes the rows whose record `is_over`. Each transaction handles one page of rows, so that no other write waits
    /// for long.
    async fn purge_table<R: 'static>(
        &self,
        table: &'static Table<R>,
        is_over: impl Fn(&R, DateTime<Utc>) -> bool + Clone + Send + 'static,
    ) -> Result<u64, Error> {
        let (mut after, mut removed) = (Some(Text::default()), 0);
        while let Some(name) = after {
            let is_over = is_over.clone();
            let purge =
                move |change: &mut Transaction<'_>| change.purge_page(table, &name, is_over);
            let (here, next) = self.file.change(purge).await?;
            (after, removed) = (next, removed + here);
        }
        Ok(removed)
    }
}
