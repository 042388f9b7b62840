//! Opens the store that an address names, by the library, and says what is wrong as the command says it.
//!
//! No error repeats an address, because it may contain a password.

pub(crate) use leasehold::address::{Backend, Opened};
use leasehold::{
    Error,
    address::{self, AddressError as LibraryError},
};
use mongodb::error::Error as DriverError;

/// Why no store can be opened at an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    /// The text is no valid address.
    #[error("{0}")]
    Invalid(String),
    /// No server answers there, or the server is not of the expected kind.
    #[error("{0}")]
    Unreachable(String),
    /// The server refused the credentials.
    #[error("{0}")]
    Denied(String),
    /// The store failed.
    #[error("{}", at(place, error))]
    Store { place: String, error: Error },
}

/// Whether a missing file is created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    IfMissing,
    /// For commands that only look: a missing file probably means that the path is mistyped.
    Never,
}

/// Opens the store at an address.
pub(crate) async fn open(address: &str, make: Make) -> Result<Opened, AddressError> {
    let opened = match make {
        Make::IfMissing => address::open(address).await,
        Make::Never => address::open_existing(address).await,
    };
    opened.map_err(|error| match error {
        LibraryError::Unreachable(text) => AddressError::Unreachable(text),
        LibraryError::Denied(text) => AddressError::Denied(text),
        LibraryError::Store { place, error } => AddressError::Store { place, error },
        error => AddressError::Invalid(error.to_string()),
    })
}

/// Sets the store up.
pub(crate) async fn prepare(opened: &Opened) -> Result<(), AddressError> {
    let place = opened.place.clone();
    let prepared = opened.prepare().await;
    prepared.map_err(|error| AddressError::Store { place, error })
}

/// The message for an error, with its cause.
pub(crate) fn message(error: &Error) -> String {
    let is_of_mongodb = || error.driver_error::<DriverError>().is_some();
    match error {
        Error::NotPrepared { store, problem } => format!(
            "{store} is not prepared for locks ({problem}): mend that, and run `leasehold prepare`"
        ),
        Error::File { .. } => error.to_string(),
        // The client of a search engine quotes what it has sent.
        Error::Unreachable { .. } | Error::Denied { .. } if !is_of_mongodb() => error.to_string(),
        error => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}

/// The message, after the place of the store. If the message names the hosts, only the rest of the place stands there.
fn at(place: &str, error: &Error) -> String {
    let message = message(error);
    match place.rsplit_once(", ") {
        Some((hosts, rest)) if message.contains(hosts) => format!("{rest}: {message}"),
        _ => format!("{place}: {message}"),
    }
}
