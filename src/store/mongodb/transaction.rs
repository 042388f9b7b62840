//! A lock's document in a transaction of the user.

use chrono::{DateTime, Utc};
use mongodb::{
    ClientSession,
    bson::{RawDocumentBuf, doc, oid::ObjectId},
    error::{Error as DriverError, ErrorKind},
    options::ReturnDocument,
};

use super::{
    MongoStore, decode, dialect,
    error::{STORE, code, sorted},
    timed,
};
use crate::model::{Error, Key, LockRecord};

/// What a standalone server answers to the number of a transaction.
const ILLEGAL_OPERATION: i32 = 20;
const NO_TRANSACTIONS: &str =
    "a standalone server has no transactions; a replica set has, also one of a single member";
/// What the driver says to a second start, and to any on a standalone server. It has no other way to
/// tell.
const IN_PROGRESS: &str = "already in progress";
const UNSUPPORTED: &str = "not supported by this deployment";

impl MongoStore {
    /// Writes the document of a lock within a transaction, and gives back what it says.
    pub(crate) async fn touch(
        &self,
        key: &Key,
        session: &mut ClientSession,
    ) -> Result<Option<(LockRecord, DateTime<Utc>)>, Error> {
        let touched = self
            .locks
            .reads()
            .find_one_and_update(dialect::filter(key), dialect::touch(ObjectId::new()))
            .projection(dialect::projection())
            .return_document(ReturnDocument::After)
            .session(session)
            .await
            .map_err(|error| refusal(error, key))?;
        let told = |document: RawDocumentBuf| timed(decode::told(&document, key)?);
        touched.map(told).transpose()
    }
}

/// An error unless the session is in a transaction. Outside of one the lease would be looked at, and
/// nothing held until the end.
pub(crate) async fn ensure_in_transaction(
    session: &mut ClientSession,
    key: &Key,
) -> Result<(), Error> {
    let error = match session.start_transaction().await {
        Ok(()) => {
            // Nothing was sent yet.
            let _ = session.abort_transaction().await;
            return Err(not_enforceable(
                key,
                "the session is in no transaction: start one first",
            ));
        }
        Err(error) => error,
    };
    match &*error.kind {
        ErrorKind::Transaction { message, .. } if message.contains(IN_PROGRESS) => Ok(()),
        ErrorKind::Transaction { message, .. } if message.contains(UNSUPPORTED) => {
            Err(not_enforceable(key, NO_TRANSACTIONS))
        }
        // A session that can have none, and says why.
        ErrorKind::Transaction { .. } => Err(Error::Store {
            store: STORE,
            source: error.into(),
        }),
        _ => Err(sorted(error)),
    }
}

/// Why the document could not be written. Some servers without transactions only tell here.
fn refusal(error: DriverError, key: &Key) -> Error {
    match &*error.kind {
        ErrorKind::SessionsNotSupported => not_enforceable(key, NO_TRANSACTIONS),
        _ if code(&error) == Some(ILLEGAL_OPERATION) => not_enforceable(key, NO_TRANSACTIONS),
        _ => sorted(error),
    }
}

/// Has the server give up the transaction, while the driver goes on with it: so whatever the session
/// still sends is refused. After an abort by the driver it would be written at once, outside of any
/// transaction.
pub(crate) async fn give_up(session: &mut ClientSession) {
    let admin = session.client().database("admin");
    let abort = doc! { "abortTransaction": 1 };
    match admin.run_command(abort).session(&mut *session).await {
        Ok(_) => {}
        // The session has no transaction, or an error has ended it.
        Err(error) if code(&error).is_some() => {}
        // The server cannot be told, so at least nothing is committed from here.
        Err(_) => drop(session.abort_transaction().await),
    }
}

pub(crate) fn not_enforceable(key: &Key, problem: &'static str) -> Error {
    Error::NotEnforceable {
        key: key.clone(),
        problem,
    }
}
