//! An open file of locks: its connection, its transactions and its clock.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use chrono::{DateTime, Utc};
use rusqlite::{Connection, MAIN_DB, OptionalExtension, TransactionBehavior, params};

use super::{
    beside::Beside,
    clock::{self, Kept, Reading},
    error::{classify, classify_commit, unusable},
    identity::Identity,
    lock_file::LockFile,
    opening::{self, Make},
    table::Transaction,
};
use crate::model::{Cause, Error};

/// The clock margin if the host counts from its boot. All processes share that clock, in whole milliseconds.
const MARGIN: Duration = Duration::from_millis(10);
/// The clock margin if the clock is the time of day, which can be set.
const MARGIN_OF_DAY: Duration = Duration::from_millis(100);

const READ_CLOCK: &str = "SELECT boot, base, last FROM clock";
const WRITE_CLOCK: &str =
    "INSERT OR REPLACE INTO clock (one, boot, base, last) VALUES (1, ?, ?, ?)";
const EMPTY_LOG: &str = "PRAGMA wal_checkpoint(truncate)";
#[cfg(test)]
pub(super) const STATEMENTS: [&str; 2] = [READ_CLOCK, WRITE_CLOCK];

pub(super) struct File {
    path: PathBuf,
    identity: Identity,
    connection: Connection,
    lock: LockFile,
    is_readonly: bool,
    /// Whether this connection has written anything.
    has_written: bool,
    boot: Option<String>,
    /// The base of the clock when this process last used it.
    base: Option<i64>,
}

impl File {
    pub(super) fn open(path: &Path, make: Make) -> Result<Self, Error> {
        let classify = |error| classify(error, path);
        let unusable = |problem: Cause| unusable(path, problem);
        let mut connection = opening::connect(path, make)?;
        let is_readonly = connection.is_readonly(MAIN_DB).map_err(classify)?;
        let beside = Beside::of(path).map_err(|error| unusable(error.into()))?;
        beside.check(!is_readonly).map_err(unusable)?;
        let lock = opening::lock_file(path, &beside, make)?;
        let boot = clock::boot();
        let locked = lock.lock()?;
        opening::prepare(&mut connection, path, make)?;
        // This first read makes SQLite open its other files, which the identity needs.
        let clock = FileClock::read(&connection, boot.as_deref(), None).map_err(classify)?;
        let identity = Identity::of(path, &beside, &lock).map_err(unusable)?;
        drop(locked);
        let mut this = Self {
            path: path.to_path_buf(),
            identity,
            connection,
            lock,
            is_readonly,
            has_written: false,
            boot,
            base: clock.used_base(),
        };
        if clock.is_of_new_boot && !is_readonly {
            this.change(|| (), |_, ()| Ok(()))?;
        }
        Ok(this)
    }

    pub(super) fn clock_margin(&self) -> Duration {
        match self.boot {
            Some(_) => MARGIN,
            None => MARGIN_OF_DAY,
        }
    }

    /// Runs `work` in a write transaction, and commits it if something was written. `begun` runs when the transaction
    /// has begun, before its time is read, and `work` gets what it returns.
    pub(super) fn change<B, T>(
        &mut self,
        begun: impl FnOnce() -> B,
        work: impl FnOnce(&mut Transaction<'_>, B) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.is_readonly {
            let problem = Cause::text("this user may only read it");
            return Err(unusable(&self.path, problem));
        }
        let _locked = self.lock.lock()?;
        self.check()?;
        let classify = |error| classify(error, &self.path);
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior);
        let transaction = transaction.map_err(classify)?;
        let begun = begun();
        let clock =
            FileClock::read(&transaction, self.boot.as_deref(), self.base).map_err(classify)?;
        let mut change = clock.transaction(&transaction, &self.path);
        let done = work(&mut change, begun)?;
        if change.has_written || clock.is_of_new_boot {
            clock.write(&transaction).map_err(classify)?;
            self.has_written = true;
            let committed = transaction.commit();
            committed.map_err(|error| classify_commit(error, &self.path))?;
            self.base = Some(clock.kept.base);
        } else {
            self.base = clock.used_base();
        }
        Ok(done)
    }

    /// Runs `work` in a read transaction, which sees one state of the file.
    pub(super) fn read<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _locked = self.lock.lock()?;
        self.check()?;
        let classify = |error| classify(error, &self.path);
        let transaction = self.connection.transaction().map_err(classify)?;
        let clock =
            FileClock::read(&transaction, self.boot.as_deref(), self.base).map_err(classify)?;
        self.base = clock.used_base();
        work(&clock.transaction(&transaction, &self.path))
    }

    fn check(&self) -> Result<(), Error> {
        let checked = self.identity.check();
        checked.map_err(|problem| unusable(&self.path, problem))
    }
}

impl Drop for File {
    /// Moves the pages from the log to the file, which SQLite does not do at the end of these connections. The log is
    /// empty then, so that nothing is lost if somebody copies the file alone or removes what is beside it.
    fn drop(&mut self) {
        if !self.has_written {
            return;
        }
        // Who has the lock, or opens the file next, does it just as well.
        if let Ok(Some(_locked)) = self.lock.try_lock()
            && self.identity.check().is_ok()
            && self.connection.busy_timeout(Duration::ZERO).is_ok()
        {
            let _ = self.connection.query_row(EMPTY_LOG, [], |_| Ok(()));
        }
    }
}

/// The clock of the file, as it was read for one transaction.
struct FileClock {
    kept: Kept,
    /// Whether the file has the clock of an earlier boot. Until the clock of this boot is written, each transaction
    /// computes its own `base`, so the time may stand still.
    is_of_new_boot: bool,
    /// Whether the host has booted since then, or the file is new.
    has_booted: bool,
}

impl FileClock {
    fn read(
        connection: &Connection,
        boot: Option<&str>,
        base: Option<i64>,
    ) -> rusqlite::Result<Self> {
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
            base,
        };
        let kept = Kept::at(before.as_ref(), &reading);
        let has_booted = before
            .as_ref()
            .is_none_or(|before| before.base != kept.base);
        let is_of_new_boot = before.is_none_or(|before| before.boot != kept.boot);
        Ok(Self {
            kept,
            is_of_new_boot,
            has_booted,
        })
    }

    /// The base, if it is that of the file. After a boot it counts only when it was written.
    fn used_base(&self) -> Option<i64> {
        (!self.has_booted).then_some(self.kept.base)
    }

    fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        let Kept { boot, base, last } = &self.kept;
        connection
            .prepare_cached(WRITE_CLOCK)?
            .execute(params![boot, base, last])
            .map(drop)
    }

    /// The transaction for which it was read.
    fn transaction<'a>(&self, connection: &'a Connection, path: &'a Path) -> Transaction<'a> {
        Transaction {
            connection,
            path,
            // The number is beyond the calendar only if another program wrote the file.
            now: DateTime::from_timestamp_millis(self.kept.last)
                .unwrap_or(DateTime::<Utc>::MAX_UTC),
            has_written: false,
        }
    }
}
