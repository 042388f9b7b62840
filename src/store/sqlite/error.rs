//! Classifies SQLite's errors by what the caller can do about them.

use std::path::Path;

use rusqlite::{Error as SqliteError, ErrorCode};

use crate::model::{Cause, Error};

/// The name of the store in messages.
pub(super) const STORE: &str = "SQLite";

/// Classifies an error of an operation other than a commit. In doubt, the operation may have been carried out.
pub(super) fn classify(error: SqliteError, path: &Path) -> Error {
    let store = STORE;
    let code = error.sqlite_error_code();
    let source: Cause = error.into();
    match code {
        // Another process has been writing for longer than the busy timeout, or the disk is full.
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::DiskFull,
        ) => Error::Overloaded { store, source },
        Some(
            ErrorCode::CannotOpen
            | ErrorCode::NotADatabase
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied
            | ErrorCode::ReadOnly,
        ) => unusable(path, source),
        // The disk or the memory failed, perhaps for a moment.
        Some(
            ErrorCode::SystemIoFailure | ErrorCode::OperationInterrupted | ErrorCode::OutOfMemory,
        ) => Error::Interrupted { store, source },
        _ => Error::Store { store, source },
    }
}

/// Classifies an error of a commit. The commit may have been carried out: if the disk fails after the last page is in
/// the log, and the process crashes before the next commit, the recovery of the log carries it out.
pub(super) fn classify_commit(error: SqliteError, path: &Path) -> Error {
    match classify(error, path) {
        Error::Overloaded { store, source } => Error::Interrupted { store, source },
        error => error,
    }
}

pub(super) fn unusable(path: &Path, source: Cause) -> Error {
    Error::File {
        path: path.to_path_buf(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn error(code: i32) -> SqliteError {
        SqliteError::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn an_error_says_whether_to_try_again_and_whether_it_may_be_done() {
        for (code, retryable, ambiguous) in [
            (ffi::SQLITE_BUSY, true, false),
            (ffi::SQLITE_BUSY_RECOVERY, true, false),
            (ffi::SQLITE_BUSY_SNAPSHOT, true, false),
            (ffi::SQLITE_PROTOCOL, true, false),
            (ffi::SQLITE_FULL, true, false),
            (ffi::SQLITE_IOERR_READ, true, true),
            (ffi::SQLITE_IOERR_FSYNC, true, true),
            (ffi::SQLITE_NOMEM, true, true),
            (ffi::SQLITE_CANTOPEN, false, false),
            (ffi::SQLITE_READONLY_DBMOVED, false, false),
            (ffi::SQLITE_READONLY_CANTINIT, false, false),
            (ffi::SQLITE_CORRUPT, false, false),
            (ffi::SQLITE_NOTADB, false, false),
            (ffi::SQLITE_CONSTRAINT, false, false),
        ] {
            let before = classify(error(code), Path::new("locks.db"));
            let said = (before.is_retryable(), before.is_ambiguous());
            assert_eq!(said, (retryable, ambiguous), "{code}: {before:?}");
            // A failed commit that a retry can fix may have been carried out.
            let commit = classify_commit(error(code), Path::new("locks.db"));
            let said = (commit.is_retryable(), commit.is_ambiguous());
            assert_eq!(said, (retryable, retryable), "{code}: {commit:?}");
        }
    }

    #[test]
    fn a_file_that_is_of_no_use_is_named() {
        for code in [
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_READONLY_DBMOVED,
            ffi::SQLITE_CORRUPT,
        ] {
            let error = classify(error(code), Path::new("locks.db"));
            assert!(matches!(error, Error::File { .. }), "{error:?}");
        }
    }
}
