//! Opens a file of locks, and creates it if needed.

use std::{
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, config::DbConfig};

use super::{
    beside::Beside,
    error::{classify, unusable},
    identity,
    lock_file::{BUSY_TIMEOUT, LockFile},
};
use crate::model::{Cause, Error};

/// The application id that marks a file of locks: "LEAS".
pub(super) const APPLICATION: i64 = 0x4c45_4153;
/// The version of the tables that this crate creates and reads.
pub(super) const VERSION: i64 = 1;
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

/// Opens a file, and makes an empty one if `make` says so. Nothing is read, so SQLite does not open the files beside it
/// yet.
pub(super) fn connect(path: &Path, make: Make) -> Result<Connection, Error> {
    // Without the URI flag, a path that begins with `file:` is a path.
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, make == Make::IfMissing);
    let opened = Connection::open_with_flags(path, flags);
    let connection = opened.map_err(|error| match path.try_exists() {
        // SQLite has the same message for each file that it cannot open.
        Ok(false) if make == Make::Never => {
            let problem =
                "it is not there: SqliteStore::open makes it, or the command leasehold prepare";
            unusable(path, Cause::text(problem))
        }
        _ => classify(error, path),
    })?;
    // Checked before anything is read: with a hard link, SQLite may read the file with the wrong log.
    identity::mark(path).map_err(|problem| unusable(path, problem))?;
    Ok(connection)
}

/// Opens the lock file, and makes it if there is none. It is not made beside a file that is of another program.
pub(super) fn lock_file(path: &Path, beside: &Beside, make: Make) -> Result<LockFile, Error> {
    let lock = beside.lock();
    let failed = |error: io::Error| unusable(&lock, error.into());
    if let Some(found) = LockFile::existing(&lock).map_err(failed)? {
        return Ok(found);
    }
    // Without the lock, the file is read as it is, without its log. This connection changes nothing, and makes no file.
    // If there is a log, the tables may be only in there.
    let has_log = fs::metadata(beside.log()).is_ok_and(|log| log.len() > 0);
    let make = if has_log { Make::IfMissing } else { make };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let judged = Connection::open_with_flags(immutable(&beside.target), flags)
        .and_then(|connection| is_made(&connection, make));
    judged
        .map_err(|error| classify(error, path))?
        .map_err(|problem| unusable(path, Cause::text(problem)))?;
    LockFile::make(&lock, &beside.target).map_err(failed)
}

/// The URI of a file that does not change while it is read.
fn immutable(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri + "?immutable=1"
}

/// Creates the tables if they do not exist. Called under the lock.
pub(super) fn prepare(connection: &mut Connection, path: &Path, make: Make) -> Result<(), Error> {
    let prepared = prepared(connection, make);
    prepared
        .map_err(|error| classify(error, path))?
        .map_err(|problem| unusable(path, Cause::text(problem)))
}

/// The inner error says why the file cannot be used.
fn prepared(connection: &mut Connection, make: Make) -> rusqlite::Result<Result<(), &'static str>> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Checked before anything is changed.
    let is_made = match is_made(connection, make)? {
        Ok(is_made) => is_made,
        Err(problem) => return Ok(Err(problem)),
    };
    // The last connection would remove the files beside the file. SQLite does not see all other connections if their
    // locks were dropped, and a user who may only read the file could not look at it without them.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    if !enable_wal(connection)? {
        return Ok(Err(
            "its disk has no shared memory, which a write-ahead log needs",
        ));
    }
    // An acknowledged write is on the disk even if the power fails a moment later.
    connection.pragma_update(None, "synchronous", "full")?;
    // On macOS a plain `fsync` leaves it in the cache of the disk.
    connection.pragma_update(None, "fullfsync", true)?;
    if !is_made {
        let behavior = TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(behavior)?;
        // Where there is no lock file, another process may have created the tables meanwhile.
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()?;
    }
    Ok(Ok(()))
}

/// Whether the tables of this version exist. The inner error says why the file cannot be used.
fn is_made(connection: &Connection, make: Make) -> rusqlite::Result<Result<bool, &'static str>> {
    // The application id, the version, and the number of tables, indexes and the like.
    let query = "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
         FROM pragma_application_id, pragma_user_version";
    let header =
        connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    Ok(match header {
        (APPLICATION, VERSION, _) => Ok(true),
        (APPLICATION, version, _) if version > VERSION => {
            Err("a newer version of leasehold made it: upgrade leasehold here")
        }
        (APPLICATION, ..) => {
            Err("its user_version is one that no version of leasehold writes: use another path")
        }
        (0, 0, 0_i64) if make == Make::Never => {
            Err("it is empty: SqliteStore::open makes its tables, or the command leasehold prepare")
        }
        (0, 0, 0) => Ok(false),
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
