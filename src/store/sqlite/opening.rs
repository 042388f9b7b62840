//! Opens a file of locks, and creates it if needed.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, TransactionBehavior};

use super::{
    error::{classify, unusable},
    identity,
};
use crate::model::{Cause, Error};

/// The application id that marks a file of locks: "LEAS".
pub(super) const APPLICATION: i64 = 0x4c45_4153;
/// The version of the tables that this crate creates and reads.
pub(super) const VERSION: i64 = 1;
/// How long an operation waits for the write of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a retry, where SQLite itself does not wait for another process.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

pub(super) const TABLES: &str = "
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

/// Whether a missing file is created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Make {
    IfMissing,
    Never,
}

/// Opens a file. If `make` says so, creates it and its tables.
pub(super) fn open(path: &Path, make: Make) -> Result<Connection, Error> {
    // Without the URI flag, a path that begins with `file:` is a path.
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, make == Make::IfMissing);
    let opened = Connection::open_with_flags(path, flags);
    let mut connection = opened.map_err(|error| match path.try_exists() {
        // SQLite has the same message for each file that it cannot open.
        Ok(false) if make == Make::Never => unusable(
            path,
            Cause::text(
                "it is not there: SqliteStore::open makes it, or the command leasehold prepare",
            ),
        ),
        _ => classify(error, path),
    })?;
    // Checked before anything is read: with a hard link, SQLite may read the file with the wrong log.
    identity::mark(path).map_err(|problem| unusable(path, problem))?;
    let prepared = prepare(&mut connection, make);
    prepared
        .map_err(|error| match connection.is_readonly(MAIN_DB) {
            Ok(true) => unusable(path, read_only(&error)),
            _ => classify(error, path),
        })?
        .map_err(|problem| unusable(path, Cause::text(problem)))?;
    Ok(connection)
}

/// The cause for a file that this user may only read. SQLite's own message is about a write to the shared memory, which
/// the user has not asked for.
fn read_only(error: &rusqlite::Error) -> Cause {
    Cause::text(format!(
        "this user may only read it, and can do so while one who may write has it open: {error}"
    ))
}

/// Creates the tables if they do not exist. The inner error says why the file cannot be used.
fn prepare(connection: &mut Connection, make: Make) -> rusqlite::Result<Result<(), &'static str>> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Checked before anything is changed.
    let made = match has_tables(connection)? {
        Ok(false) if make == Make::Never => {
            return Ok(Err(
                "it is empty: SqliteStore::open makes its tables, or the command leasehold prepare",
            ));
        }
        Ok(made) => made,
        Err(problem) => return Ok(Err(problem)),
    };
    if !enable_wal(connection)? {
        return Ok(Err(
            "its disk has no shared memory, which a write-ahead log needs",
        ));
    }
    // An acknowledged write is on the disk even if the power fails a moment later.
    connection.pragma_update(None, "synchronous", "full")?;
    // On macOS a plain `fsync` leaves it in the cache of the disk.
    connection.pragma_update(None, "fullfsync", true)?;
    if !made {
        let behavior = TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(behavior)?;
        // Another process may have created the tables meanwhile, which the statements allow.
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()?;
    }
    Ok(Ok(()))
}

/// Whether the tables of this version exist. The inner error says why the file is not a file of locks.
fn has_tables(connection: &Connection) -> rusqlite::Result<Result<bool, &'static str>> {
    Ok(match header(connection)? {
        (APPLICATION, VERSION, _) => Ok(true),
        (APPLICATION, ..) => Err("a newer version of leasehold made it: upgrade leasehold here"),
        (0, _, 0) => Ok(false),
        _ => Err("it is a database of another program"),
    })
}

/// Switches the file to WAL mode, permanently, and returns whether it is in WAL mode.
fn enable_wal(connection: &Connection) -> rusqlite::Result<bool> {
    let end = Instant::now() + BUSY_TIMEOUT;
    loop {
        let switched = connection
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0));
        match switched {
            // Another process switches the file at this moment. SQLite itself does not wait for that.
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < end =>
            {
                thread::sleep(RETRY_PAUSE);
            }
            switched => return switched.map(|mode| mode == "wal"),
        }
    }
}

/// The application id, the version, and the number of tables, indexes and the like.
fn header(connection: &Connection) -> rusqlite::Result<(i64, i64, i64)> {
    let query = "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
         FROM pragma_application_id, pragma_user_version";
    connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
}
