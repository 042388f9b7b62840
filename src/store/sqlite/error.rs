//! What SQLite's errors mean for a lock.

use std::path::Path;

use rusqlite::{Error as SqliteError, ErrorCode};

use crate::{Cause, Error};

/// The name of the store in messages.
pub(super) const STORE: &str = "SQLite";

/// Sorts an error by what its caller can do about it. When in doubt, the request may have been carried
/// out.
pub(super) fn sorted(error: SqliteError, path: &Path) -> Error {
    let store = STORE;
    let code = error.sqlite_error_code();
    let source: Cause = error.into();
    match code {
        // Another process has been writing for longer than we wait, or the disk is full.
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull) => {
            Error::Overloaded { store, source }
        }
        Some(
            ErrorCode::CannotOpen
            | ErrorCode::NotADatabase
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied
            | ErrorCode::ReadOnly,
        ) => unusable(path, source),
        // The disk failed, perhaps after the last page was written.
        Some(ErrorCode::SystemIoFailure | ErrorCode::OperationInterrupted) => {
            Error::Interrupted { store, source }
        }
        _ => Error::Store { store, source },
    }
}

pub(super) fn unusable(path: &Path, source: Cause) -> Error {
    Error::File {
        path: path.to_path_buf(),
        source,
    }
}
