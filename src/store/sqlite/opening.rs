//! How a file is opened, and made.

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

/// Marks a file as one of locks: "LEAS".
pub(super) const APPLICATION: i64 = 0x4c45_4153;
/// The tables as this version makes and reads them.
pub(super) const VERSION: i64 = 1;
/// How long another process that writes is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries of what SQLite does not wait for.
const PAUSE: Duration = Duration::from_millis(5);

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

/// How a file is treated that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Make {
    IfMissing,
    Never,
}

/// Opens a file, with its tables.
pub(super) fn open(path: &Path, make: Make) -> Result<Connection, Error> {
    // A name that begins with `file:` is a name here, and no URI with options.
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, make == Make::IfMissing);
    let opened = Connection::open_with_flags(path, flags);
    let mut connection = opened.map_err(|error| match path.try_exists() {
        // SQLite has the same words for whatever it cannot open.
        Ok(false) if make == Make::Never => unusable(
            path,
            Cause::text(
                "it is not there: SqliteStore::open makes it, or the command leasehold prepare",
            ),
        ),
        _ => classify(error, path),
    })?;
    // Before anything is read: with the log of another name it is another state.
    identity::mark(path).map_err(|problem| unusable(path, problem))?;
    let prepared = prepare(&mut connection, make);
    prepared
        .map_err(|error| match connection.is_readonly(MAIN_DB) {
            Ok(true) => unusable(path, only_read(&error)),
            _ => classify(error, path),
        })?
        .map_err(|problem| unusable(path, Cause::text(problem)))?;
    Ok(connection)
}

/// SQLite's words are of a write that nobody has asked for: that of the memory that processes share.
fn only_read(error: &rusqlite::Error) -> Cause {
    Cause::text(format!(
        "this user may only read it, and can do so while one who may write has it open: {error}"
    ))
}

/// Makes the tables if they are not there; says what is in the way.
fn prepare(connection: &mut Connection, make: Make) -> rusqlite::Result<Result<(), &'static str>> {
    connection.busy_timeout(PATIENCE)?;
    // Before anything is changed.
    let made = match made(connection)? {
        Ok(false) if make == Make::Never => {
            return Ok(Err(
                "it is empty: SqliteStore::open makes its tables, or the command leasehold prepare",
            ));
        }
        Ok(made) => made,
        Err(problem) => return Ok(Err(problem)),
    };
    if !is_logged(connection)? {
        return Ok(Err(
            "its disk has no shared memory, which a write-ahead log needs",
        ));
    }
    // An acknowledged write is on the disk, even if the power fails the moment after.
    connection.pragma_update(None, "synchronous", "full")?;
    if !made {
        let behavior = TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(behavior)?;
        // Another process may have been faster.
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()?;
    }
    Ok(Ok(()))
}

/// Whether the tables are there, and are ours.
fn made(connection: &Connection) -> rusqlite::Result<Result<bool, &'static str>> {
    Ok(match header(connection)? {
        (APPLICATION, VERSION, _) => Ok(true),
        (APPLICATION, ..) => Err("a newer version of leasehold made it: upgrade leasehold here"),
        (0, _, 0) => Ok(false),
        _ => Err("it is a database of another program"),
    })
}

/// Turns the write-ahead log on, which stays on. Whether there is one.
fn is_logged(connection: &Connection) -> rusqlite::Result<bool> {
    let end = Instant::now() + PATIENCE;
    loop {
        let turned = connection
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0));
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
fn header(connection: &Connection) -> rusqlite::Result<(i64, i64, i64)> {
    let query = "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
         FROM pragma_application_id, pragma_user_version";
    connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
}
