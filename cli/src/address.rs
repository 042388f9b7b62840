//! Opens the store that an address names, by the library, and says what is wrong as the command says it.

pub(crate) use leasehold::address::{AddressError, Backend, Opened};
use leasehold::{Error, address};
use mongodb::error::Error as DriverError;

/// Whether a missing file is created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    IfMissing,
    /// For commands that only look: a missing file probably means that the path is mistyped.
    Never,
}

/// Opens the store at an address.
pub(crate) async fn open(address: &str, make: Make) -> Result<Opened, AddressError> {
    match make {
        Make::IfMissing => address::open(address).await,
        Make::Never => address::open_existing(address).await,
    }
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

/// The message for an address.
pub(crate) fn address_message(error: &AddressError) -> String {
    match error {
        AddressError::Store { place, error } => at(place, error),
        error => error.to_string(),
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
