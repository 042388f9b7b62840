//! A lock's document in a transaction of the application.

use chrono::{DateTime, Utc};
use mongodb::{
    ClientSession,
    bson::{RawDocumentBuf, doc, oid::ObjectId},
    error::{Error as DriverError, ErrorKind},
    options::ReturnDocument,
};

use super::{
    MongoStore,
    decode::{self, timed},
    error::{STORE, cause, classify, code},
    statements,
};
use crate::model::{Error, Key, LockRecord};

/// The error of a standalone server for a command with a transaction number.
const ILLEGAL_OPERATION: i32 = 20;
const NO_TRANSACTIONS: &str =
    "a standalone server has no transactions; a replica set has, also one of a single member";
/// Parts of the driver's messages: for a second start of a transaction, and for any start on a standalone server.
/// Nothing else distinguishes the two errors.
const IN_PROGRESS: &str = "already in progress";
const UNSUPPORTED: &str = "not supported by this deployment";

impl MongoStore {
    /// Writes a mark to the document of a lock within a transaction, and returns the lock. `None` if the document does
    /// not exist.
    pub(crate) async fn touch(
        &self,
        key: &Key,
        session: &mut ClientSession,
    ) -> Result<Option<(LockRecord, DateTime<Utc>)>, Error> {
        let clock = self.statement_clock().await?;
        let update = clock.update(statements::touch(ObjectId::new()));
        let locks = self.locks.reads();
        let touched = locks
            .find_one_and_update(statements::filter(key), update)
            .projection(clock.projection())
            .return_document(ReturnDocument::After)
            .session(session)
            .await
            .map_err(|error| refusal(error, key));
        let touched = self.locks.answered(touched)?;
        let decoded = |document: RawDocumentBuf| timed(decode::lock(&document, key)?);
        touched.map(decoded).transpose()
    }
}

/// Fails unless the session is in a transaction. The driver tells that only when another one is started. Outside of a
/// transaction the lease would be checked, but nothing would keep its document from changing.
pub(crate) async fn ensure_in_transaction(
    session: &mut ClientSession,
    key: &Key,
) -> Result<(), Error> {
    let error = match session.start_transaction().await {
        Ok(()) => {
            // Nothing was sent yet, so it does not matter if the abort fails.
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
        // With any other refusal to start a transaction the session is in none, and the error says why.
        ErrorKind::Transaction { .. } => Err(Error::Store {
            store: STORE,
            source: cause(error),
        }),
        _ => Err(classify(error)),
    }
}

/// The error of a write that failed. Some servers without transactions report that only here.
fn refusal(error: DriverError, key: &Key) -> Error {
    match &*error.kind {
        ErrorKind::SessionsNotSupported => not_enforceable(key, NO_TRANSACTIONS),
        _ if code(&error) == Some(ILLEGAL_OPERATION) => not_enforceable(key, NO_TRANSACTIONS),
        _ => classify(error),
    }
}

/// Makes the server abort the transaction, while the driver still treats it as active, so that everything that the
/// session still sends is refused. If the driver aborted it, later writes of the session would be carried out at once,
/// outside of any transaction.
pub(crate) async fn give_up(session: &mut ClientSession) {
    let admin = session.client().database("admin");
    let abort = doc! { "abortTransaction": 1 };
    match admin.run_command(abort).session(&mut *session).await {
        Ok(_) => {}
        // The session has no transaction, or an error has ended it.
        Err(error) if code(&error).is_some() => {}
        // The server cannot be reached. After an abort by the driver, this session at least commits nothing.
        Err(_) => drop(session.abort_transaction().await),
    }
}

pub(crate) fn not_enforceable(key: &Key, problem: &'static str) -> Error {
    Error::NotEnforceable {
        key: key.clone(),
        problem,
    }
}
