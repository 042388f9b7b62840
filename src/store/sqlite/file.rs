//! The file: its tables, its transactions, its time.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior, params};

use super::{
    clock::{self, Kept, Reading},
    error::{sorted, unusable},
    table::{Change, Look},
};
use crate::{Cause, Error};

/// Marks a file as one of locks: "LEAS".
pub(super) const APPLICATION: i64 = 0x4c45_4153;
/// The tables as this version makes and reads them.
pub(super) const VERSION: i64 = 1;
/// How long another process that writes is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries of what SQLite does not wait for.
const PAUSE: Duration = Duration::from_millis(5);
/// All processes have one clock, which counts whole milliseconds.
const MARGIN: Duration = Duration::from_millis(10);
/// The time of day may be set.
const MARGIN_OF_DAY: Duration = Duration::from_millis(100);

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS locks (
        name TEXT NOT NULL PRIMARY KEY,
        document TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS limiters (
        name TEXT NOT NULL PRIMARY KEY,
        document TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS clock (
        one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
        boot TEXT NOT NULL,
        base INTEGER NOT NULL,
        last INTEGER NOT NULL
    ) STRICT;
";

const READ_CLOCK: &str = "SELECT boot, base, last FROM clock";
const WRITE_CLOCK: &str =
    "INSERT OR REPLACE INTO clock (one, boot, base, last) VALUES (1, ?, ?, ?)";
#[cfg(test)]
pub(super) const STATEMENTS: [&str; 3] = [TABLES, READ_CLOCK, WRITE_CLOCK];

pub(super) struct File {
    path: PathBuf,
    /// Which file of this name it is.
    identity: Option<(u64, u64)>,
    connection: Connection,
    boot: Option<String>,
}

impl File {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        // A name that begins with `file:` is a name here, and no URI with options.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags);
        let mut this = Self {
            path: path.to_path_buf(),
            identity: None,
            connection: connection.map_err(|error| sorted(error, path))?,
            boot: clock::boot(),
        };
        this.prepare()
            .map_err(|error| sorted(error, path))?
            .map_err(|problem| unusable(path, Cause::text(problem)))?;
        this.identity = identity(path).map_err(|error| unusable(path, error.into()))?;
        Ok(this)
    }

    /// Makes the tables if they are not there; says what is in the way.
    fn prepare(&mut self) -> rusqlite::Result<Result<(), &'static str>> {
        self.connection.busy_timeout(PATIENCE)?;
        // Before anything is changed.
        let made = match self.made()? {
            Ok(made) => made,
            Err(problem) => return Ok(Err(problem)),
        };
        if !self.is_logged()? {
            return Ok(Err(
                "its disk has no shared memory, which a write-ahead log needs",
            ));
        }
        // What is acknowledged is on the disk, be there a loss of power the moment after.
        self.connection.pragma_update(None, "synchronous", "full")?;
        if !made {
            let behavior = TransactionBehavior::Immediate;
            let transaction = self.connection.transaction_with_behavior(behavior)?;
            // Another process may have been faster.
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "application_id", APPLICATION)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            transaction.commit()?;
        }
        Ok(Ok(()))
    }

    /// Whether the tables are there, and not those of somebody else.
    fn made(&self) -> rusqlite::Result<Result<bool, &'static str>> {
        Ok(match self.header()? {
            (APPLICATION, VERSION, _) => Ok(true),
            (APPLICATION, ..) => {
                Err("a newer version of leasehold made it: upgrade leasehold here")
            }
            (0, _, 0) => Ok(false),
            _ => Err("it is a database of another program"),
        })
    }

    /// Turns the write-ahead log on, which stays on. Whether there is one.
    fn is_logged(&self) -> rusqlite::Result<bool> {
        let end = Instant::now() + PATIENCE;
        loop {
            let turned =
                self.connection
                    .pragma_update_and_check(None, "journal_mode", "wal", |row| {
                        row.get::<_, String>(0)
                    });
            match turned {
                // Others turn it on at this moment. SQLite does not wait for them by itself.
                Err(error)
                    if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                        && Instant::now() < end =>
                {
                    thread::sleep(PAUSE);
                }
                turned => return turned.map(|mode| mode == "wal"),
            }
        }
    }

    /// The marks of the file, and how many tables and the like it has.
    fn header(&self) -> rusqlite::Result<(i64, i64, i64)> {
        let query = "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
             FROM pragma_application_id, pragma_user_version";
        self.connection
            .query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
    }

    pub(super) fn clock_margin(&self) -> Duration {
        match self.boot {
            Some(_) => MARGIN,
            None => MARGIN_OF_DAY,
        }
    }

    /// Does this in one step, in which nobody else writes.
    pub(super) fn change<T>(
        &mut self,
        work: impl FnOnce(&mut Change<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.is_the_one()?;
        let sorted = |error| sorted(error, &self.path);
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior);
        let transaction = transaction.map_err(sorted)?;
        let kept = kept(&transaction, self.boot.as_deref()).map_err(sorted)?;
        let mut change = Change::new(Look::new(&transaction, &self.path, time(&kept)));
        let done = work(&mut change)?;
        if change.has_written() {
            keep(&transaction, &kept).map_err(sorted)?;
            transaction.commit().map_err(sorted)?;
        }
        Ok(done)
    }

    /// Looks at one state of the file.
    pub(super) fn look<T>(
        &mut self,
        work: impl FnOnce(&Look<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.is_the_one()?;
        let sorted = |error| sorted(error, &self.path);
        let transaction = self.connection.transaction().map_err(sorted)?;
        let kept = kept(&transaction, self.boot.as_deref()).map_err(sorted)?;
        work(&Look::new(&transaction, &self.path, time(&kept)))
    }

    /// Somebody who removed the file, or put another in its place, would have others lock there what is
    /// held here.
    fn is_the_one(&self) -> Result<(), Error> {
        match identity(&self.path) {
            Ok(identity) if identity == self.identity => Ok(()),
            Ok(_) => {
                let source = Cause::text("it was replaced by another: open it again");
                Err(unusable(&self.path, source))
            }
            Err(error) => Err(unusable(&self.path, error.into())),
        }
    }
}

/// What tells a file from another of the same name, where there is something.
#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    use std::os::unix::fs::MetadataExt;

    fs::metadata(path).map(|data| Some((data.dev(), data.ino())))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    fs::metadata(path).map(|_| None)
}

/// The clock of the file, now.
fn kept(connection: &Connection, boot: Option<&str>) -> rusqlite::Result<Kept> {
    let before = connection
        .prepare_cached(READ_CLOCK)?
        .query_row([], |row| {
            Ok(Kept {
                boot: row.get(0)?,
                base: row.get(1)?,
                last: row.get(2)?,
            })
        })
        .optional()?;
    let reading = Reading {
        boot: boot.map(|boot| (boot, clock::since_boot())),
        of_day: Utc::now().timestamp_millis(),
    };
    Ok(Kept::at(before.as_ref(), &reading))
}

fn keep(connection: &Connection, kept: &Kept) -> rusqlite::Result<()> {
    let Kept { boot, base, last } = kept;
    connection
        .prepare_cached(WRITE_CLOCK)?
        .execute(params![boot, base, last])
        .map(drop)
}

fn time(kept: &Kept) -> DateTime<Utc> {
    // A file that was tampered with may say anything.
    DateTime::from_timestamp_millis(kept.last).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
