//! The driver's errors, sorted by what their caller can do about them.

use std::{io, mem};

use mongodb::{
    bson::Document,
    error::{
        Error as DriverError, ErrorKind, NO_WRITES_PERFORMED, RETRYABLE_WRITE_ERROR,
        SYSTEM_OVERLOADED_ERROR, TRANSIENT_TRANSACTION_ERROR, WriteFailure,
    },
};

use super::statements::integer;
use crate::model::{Cause, Error, brief, quoted};

/// The name of the store in messages.
pub(crate) const STORE: &str = "MongoDB";

/// A unique index refused a second document with the same key.
pub(crate) const DUPLICATE_KEY: i32 = 11_000;
/// An index of this name or with these fields exists with other options.
pub(crate) const INDEX_CONFLICTS: [i32; 2] = [85, 86];
/// There is no collection of this name.
pub(crate) const NAMESPACE_NOT_FOUND: i32 = 26;

/// The engine does not make an index of this kind: it cannot create the index (67), does not know one of the options
/// (72, 197) or the command (59, 115), or has not implemented it (238, and 303 of Amazon DocumentDB).
pub(crate) const INDEX_REFUSED: [i32; 7] = [59, 67, 72, 115, 197, 238, 303];

/// The server does not know an expression of a pipeline, or does not allow it in its feature compatibility version.
pub(crate) const UNKNOWN_EXPRESSION: [i32; 2] = [168, 224];
/// The server could not read a command.
const FAILED_TO_PARSE: i32 = 9;
const TYPE_MISMATCH: i32 = 14;

/// The code for a value that the server does not accept. The text is that for a write concern with `j` on a server
/// without a journal, because the code alone is not specific enough.
const BAD_VALUE: i32 = 2;
const WITHOUT_JOURNAL: &str = "does not have journaling enabled";

/// The user has no right to do this.
const UNAUTHORIZED: i32 = 13;
/// The server refused the password.
pub(crate) const AUTHENTICATION_FAILED: i32 = 18;
const DENIED: [i32; 2] = [UNAUTHORIZED, AUTHENTICATION_FAILED];

/// A validator of the collection refused a document.
const REFUSED_BY_VALIDATOR: i32 = 121;
/// The command cannot be carried out on a view.
pub(crate) const IS_A_VIEW: i32 = 166;

/// The longest text of a cause.
const LONGEST_CAUSE: usize = 130;
/// The longest message that names its servers. With a place before it, it is at most 300 characters.
const LONGEST_MESSAGE: usize = 240;
/// The longest list of servers before a cause.
const LONGEST_SERVERS: usize = 60;
/// How many of the servers that cannot be used are named.
const SERVERS_SHOWN: usize = 3;
/// The primary stepped down or is shutting down, the network between the servers failed, or time ran out. These are the
/// driver's own list of errors that a retry may fix, and the time limits; a router's errors for a shard without a
/// primary (133) or without a connection in time (202, 407), and for documents that move to another shard (63, 150,
/// 13,388); the end of a single operation by an operator (11,601); and the refusals of a server that gets too many
/// requests (433, 449, 450, 462), or takes no writes of users for now (371). The driver may have repeated such a
/// request, and tells only of its last try: an earlier one may have been carried out.
const INTERRUPTED: [i32; 28] = [
    6, 7, 50, 63, 64, 89, 91, 133, 134, 150, 189, 202, 262, 371, 407, 433, 449, 450, 462, 9_001,
    10_058, 10_107, 11_600, 11_601, 11_602, 13_388, 13_435, 13_436,
];

/// The server's number for the error, if the error came from the server.
pub(crate) fn code(error: &DriverError) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => Some(concern.code),
        _ => None,
    }
}

/// Whether the server has answered with one of these numbers.
pub(crate) fn has_code(error: &DriverError, codes: &[i32]) -> bool {
    code(error).is_some_and(|code| codes.contains(&code))
}

/// Whether the error says that the server has no journal for a write to wait for.
fn refuses_journal(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::Command(it) if it.code == BAD_VALUE && it.message.contains(WITHOUT_JOURNAL))
}

/// An error of the driver with a sentence as its text, because its own text contains whole answers of the server.
pub(crate) fn cause(error: DriverError) -> Cause {
    let text = match &*error.kind {
        ErrorKind::ServerSelection { message, .. } => of_no_server(message),
        ErrorKind::ConnectionPoolCleared { message, .. } => without_details(message),
        kind => sentence(kind),
    };
    Cause::worded(brief(&text, LONGEST_CAUSE), error)
}

/// Which servers the driver looked for, and what it knows of each, from its description of all of them.
fn of_no_server(message: &str) -> String {
    let described = message.split("{ Address: ").skip(1);
    let mut servers: Vec<_> = described
        .map(|server| {
            let (address, rest) = server.split_once(", Type: ").unwrap_or((server, ""));
            let known = match rest.split_once(", Error: ") {
                Some((_, error)) => without_details(error),
                None => rest.split([',', ' ']).next().unwrap_or_default().to_owned(),
            };
            format!("{address} ({known})")
        })
        .collect();
    if servers.is_empty() {
        return without_details(message);
    }
    servers.sort();
    let more = match servers.len().saturating_sub(SERVERS_SHOWN) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    servers.truncate(SERVERS_SHOWN);
    // The driver's words for the case that servers answer, and none of them is the primary.
    let what = if message.contains("None of the available servers") {
        "none of these servers takes writes"
    } else {
        "no server answers"
    };
    format!("{what}: {}{more}", servers.join(", "))
}

/// The driver's text for an error in another one, without its lists of labels and of inner errors.
fn without_details(text: &str) -> String {
    let text = text.split(", labels: ").next().unwrap_or_default();
    text.replace("Kind: ", "").replace("I/O error: ", "")
}

/// The message of the server or the driver. The driver's own text for a failed write has all fields of the error, even
/// the server's details, which may contain documents.
pub(crate) fn sentence(kind: &ErrorKind) -> String {
    let (message, code) = match kind {
        ErrorKind::Write(WriteFailure::WriteError(write)) => (&*write.message, write.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => {
            (&*concern.message, concern.code)
        }
        // After the database, this message has the whole command.
        ErrorKind::Command(it) if it.code == UNAUTHORIZED => {
            (it.message.split(" {").next().unwrap_or_default(), it.code)
        }
        ErrorKind::Command(it) => (&*it.message, it.code),
        _ => return kind.to_string(),
    };
    format!("{message} (code {code})")
}

/// Whether two upserts collided: both inserted a document with the same value of this field.
pub(crate) fn is_race(error: &DriverError, field: &str) -> bool {
    code(error) == Some(DUPLICATE_KEY)
        && duplicate(&sentence(&error.kind)).is_none_or(|it| it.field == field)
}

/// As [`is_race`], for one statement among many, whose documents have their keys in `_id`.
pub(crate) fn is_statement_race(error: &Document) -> bool {
    statement_code(error) == Some(DUPLICATE_KEY.into())
        && duplicate(error.get_str("errmsg").unwrap_or_default()).is_none_or(|it| it.field == "_id")
}

/// The server's number for the error of one statement among many.
pub(crate) fn statement_code(error: &Document) -> Option<i64> {
    error.get("code").and_then(integer)
}

/// A document that a unique index refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Duplicate<'a> {
    /// The name of the index.
    pub(crate) index: &'a str,
    /// Its first field.
    pub(crate) field: &'a str,
    /// The value of that field, as the server writes it.
    pub(crate) value: &'a str,
}

/// Reads the server's text for a duplicate key; `None` if it is another text.
pub(crate) fn duplicate(text: &str) -> Option<Duplicate<'_>> {
    let (index, rest) = text.split_once(" index: ")?.1.split_once(" dup key: { ")?;
    let (field, rest) = rest.split_once(": ")?;
    let value = rest.split([',', '}']).next()?.trim();
    Some(Duplicate {
        index,
        field,
        value,
    })
}

/// The error for a collection that is not fit for locks.
pub(crate) fn not_prepared(problem: impl Into<String>) -> Error {
    Error::NotPrepared {
        store: STORE,
        problem: problem.into(),
    }
}

/// The error of a request that may have been carried out.
pub(crate) fn interrupted(problem: impl Into<String>) -> Error {
    Error::Interrupted {
        store: STORE,
        source: Cause::text(problem),
    }
}

/// The error of a request that a retry does not help.
pub(crate) fn failed(problem: impl Into<String>) -> Error {
    Error::Store {
        store: STORE,
        source: Cause::text(problem),
    }
}

/// Why a document cannot be read.
pub(crate) fn makes_no_sense(field: &str) -> String {
    format!("its field {field} makes no sense")
}

/// Why a collection of locks must not have this unique index.
pub(crate) fn unique_index(name: &str) -> String {
    let name = quoted(name);
    format!(
        "its unique index {name} refuses all locks but one: drop it, or give the locks a collection of their own"
    )
}

/// Why a view is not fit for locks.
pub(crate) fn view() -> String {
    "it is a view, which takes no writes: give the locks a collection of their own".to_owned()
}

/// The error if the server refused a change of a lock because of what the collection is. A retry cannot help.
fn of_an_unfit_collection(code: i32, text: &str) -> Option<Error> {
    match code {
        // A unique index on a field other than `_id` refuses the lock.
        DUPLICATE_KEY => {
            let duplicate = duplicate(text).filter(|it| it.field != "_id")?;
            Some(not_prepared(unique_index(duplicate.index)))
        }
        REFUSED_BY_VALIDATOR => Some(not_prepared(
            "its validator refuses the documents of locks: remove it, or give the locks a collection of their own",
        )),
        IS_A_VIEW => Some(not_prepared(view())),
        _ => None,
    }
}

/// Classifies the error of a request about locks or limiters, by what the caller can do about it. In doubt, the request
/// may have been carried out.
pub(crate) fn classify(error: DriverError) -> Error {
    let unfit = code(&error).and_then(|code| of_an_unfit_collection(code, &sentence(&error.kind)));
    unfit.unwrap_or_else(|| classify_of_any_collection(error))
}

/// As [`classify`], for a request that may be about a collection of the application.
pub(crate) fn classify_of_any_collection(error: DriverError) -> Error {
    let store = STORE;
    let unwritten = error.contains_label(NO_WRITES_PERFORMED);
    let retryable = error.contains_label(RETRYABLE_WRITE_ERROR);
    let transient = error.contains_label(TRANSIENT_TRANSACTION_ERROR);
    // The driver gives this label to connections that it cannot make, too.
    let is_overloaded = code(&error).is_some() && error.contains_label(SYSTEM_OVERLOADED_ERROR);
    let is_denied = has_code(&error, &DENIED);
    let is_interrupted = retryable || is_overloaded || has_code(&error, &INTERRUPTED);
    let is_classic =
        code(&error).is_some_and(|code| refuses_pipelines(code, &sentence(&error.kind)));
    let is_passing_refusal = is_passing_refusal(&error);
    let kind = error.kind.clone();
    let source = cause(error);
    match *kind {
        _ if is_classic => no_pipelines(),
        _ if is_passing_refusal => Error::Unreachable { store, source },
        _ if refused(&kind) => Error::Denied { store, source },
        _ if refuses_journal(&kind) => Error::NoJournal { store, source },
        _ if transient => Error::TransactionAborted { store, source },
        _ if is_denied => Error::Denied { store, source },
        // No server was found to send the request to.
        ErrorKind::ServerSelection { .. } | ErrorKind::DnsResolve { .. } => {
            Error::Unreachable { store, source }
        }
        ErrorKind::Io(ref io) if unwritten || never_connected(io) => {
            Error::Unreachable { store, source }
        }
        // The primary made the write, and a majority did not confirm it in time.
        ErrorKind::Write(WriteFailure::WriteConcernError(_)) => {
            Error::Interrupted { store, source }
        }
        _ if is_interrupted => Error::Interrupted { store, source },
        // The server refused the request, or the driver refused it before it sent anything.
        ErrorKind::Command(_)
        | ErrorKind::Write(_)
        | ErrorKind::InvalidArgument { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. }
        | ErrorKind::SessionsNotSupported
        | ErrorKind::Custom(_)
        | ErrorKind::Shutdown => Error::Store { store, source },
        // The connection broke, was closed by the pool, or gave an answer that makes no sense.
        _ => Error::Interrupted { store, source },
    }
}

/// An error of these servers, which it names before its cause.
pub(crate) fn at(servers: &str, mut error: Error) -> Error {
    let first = servers.split(", ").next().unwrap_or_default();
    let told = |cause: String| {
        // The driver names the servers when none of them can be used.
        if cause.contains(first) {
            cause
        } else {
            format!("{}: {cause}", brief(servers, LONGEST_SERVERS))
        }
    };
    let most = LONGEST_MESSAGE.saturating_sub(error.to_string().chars().count() + ": ".len());
    if let Error::NotPrepared { problem, .. } = &mut error {
        *problem = told(mem::take(problem));
    } else if let Some(cause) = error.cause_mut() {
        let text = told(cause.to_string());
        *cause = cause.reworded(brief(&text, most));
    }
    error
}

/// Whether the engine does not support pipelines in updates, as Amazon DocumentDB.
fn refuses_pipelines(code: i32, text: &str) -> bool {
    [FAILED_TO_PARSE, TYPE_MISMATCH, 0].contains(&code)
        && (text.contains("must be of BSON type object")
            || text.contains("Wrong type for parameter u"))
}

fn no_pipelines() -> Error {
    not_prepared(
        "its engine takes no pipelines in updates, as Amazon DocumentDB does not: use MongoStore::without_pipelines",
    )
}

/// Whether a server did not authenticate a new connection for a reason that passes, such as its shutdown. The driver then
/// has sent nothing but that.
fn is_passing_refusal(error: &DriverError) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|it| {
        let boxed = it.downcast_ref::<Box<DriverError>>();
        boxed.map(|it| &**it).or_else(|| it.downcast_ref())
    });
    matches!(*error.kind, ErrorKind::Authentication { .. })
        && source.is_some_and(|source| has_code(source, &INTERRUPTED))
}

/// Whether the server refused the credentials. After the first refusal the driver treats the server as unavailable
/// until its next heartbeat, for up to 10 s. Until then only the text of its errors contains the reason.
fn refused(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::Authentication { .. } => true,
        ErrorKind::ConnectionPoolCleared { message, .. }
        | ErrorKind::ServerSelection { message, .. } => {
            // The server's own name of the error.
            message.contains("AuthenticationFailed")
        }
        _ => false,
    }
}

/// Makes an error of the driver, so that `?` can return it from the callback of a transaction.
///
/// [`Error::TransactionAborted`] becomes the driver's original error, with the labels by which `and_run` of the driver
/// runs the transaction again. Any other error is wrapped, and `get_custom::<leasehold::Error>()` returns it.
impl From<Error> for DriverError {
    fn from(error: Error) -> Self {
        let said = match &error {
            Error::TransactionAborted { .. } => error.driver_error::<Self>().cloned(),
            _ => None,
        };
        said.unwrap_or_else(|| Self::custom(error))
    }
}

/// Classifies the error of one statement among many.
pub(crate) fn statement_failed(error: &Document) -> Error {
    let code = statement_code(error).unwrap_or_default();
    let text = error.get_str("errmsg").unwrap_or("it does not say why");
    let number = i32::try_from(code).unwrap_or_default();
    if let Some(error) = of_an_unfit_collection(number, text) {
        return error;
    }
    if refuses_pipelines(number, text) {
        return no_pipelines();
    }
    let text = format!("{text} (code {code})");
    let (store, source) = (STORE, Cause::text(brief(&text, LONGEST_CAUSE)));
    if INTERRUPTED.iter().any(|at| i64::from(*at) == code) {
        Error::Interrupted { store, source }
    } else {
        Error::Store { store, source }
    }
}

fn never_connected(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrNotAvailable, ConnectionRefused, NotFound};
    matches!(
        error.kind(),
        ConnectionRefused | NotFound | AddrNotAvailable
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io_error(kind: io::ErrorKind) -> DriverError {
        io::Error::from(kind).into()
    }

    #[test]
    fn a_connection_that_was_never_made_is_unreachable() {
        let error = classify(io_error(io::ErrorKind::ConnectionRefused));
        assert!(matches!(error, Error::Unreachable { .. }));
        assert!(error.is_retryable() && !error.is_ambiguous());
    }

    #[test]
    fn a_connection_that_broke_is_ambiguous() {
        for kind in [
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::TimedOut,
        ] {
            assert!(classify(io_error(kind)).is_ambiguous(), "{kind:?}");
        }
    }

    #[test]
    fn the_servers_that_cannot_be_used_are_named_with_the_reason() {
        let refused =
            "Kind: I/O error: Connection refused (os error 111), labels: {\"A\"}, source: None";
        let server = |port: u16, what: &str| format!("{{ Address: db:{port}, Type: {what} }}");
        let all = |servers: Vec<String>| {
            let servers = servers.join(", ");
            of_no_server(&format!(
                "Server selection timeout: No available servers. Topology: {{ Type: Unknown, Servers: [ {servers} ] }}"
            ))
        };
        assert_eq!(
            all(vec![server(1, &format!("Unknown, Error: {refused}"))]),
            "no server answers: db:1 (Connection refused (os error 111))"
        );
        assert_eq!(
            all((1..6).rev().map(|port| server(port, "Unknown")).collect()),
            "no server answers: db:1 (Unknown), db:2 (Unknown), db:3 (Unknown), and 2 more"
        );
        let without_primary = "Server selection timeout: None of the available servers suitable for criteria \
            ReadPreference(Primary). Topology: { Type: ReplicaSetNoPrimary, Set Name: rs0, Servers: [ \
            { Address: db:1, Type: RsSecondary, Average RTT: 1ms, Last Update Time: 0 } ] }";
        assert_eq!(
            of_no_server(without_primary),
            "none of these servers takes writes: db:1 (RsSecondary)"
        );
        assert_eq!(of_no_server("no address"), "no address");
    }

    #[test]
    fn an_error_of_our_own_making_is_final() {
        let error = classify(DriverError::custom("nonsense"));
        assert!(matches!(error, Error::Store { .. }));
        assert!(!error.is_retryable());
    }
}
