//! Opens a file of locks.

use std::path::PathBuf;

use super::{
    error::AddressError,
    opened::{Backend, Opened},
    scheme::Make,
};
use crate::store::sqlite::SqliteStore;

pub(super) async fn open(path: &str, make: Make) -> Result<Opened, AddressError> {
    // `file:///path` is the form of a URL, with an empty host.
    let path = match path.strip_prefix("//") {
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    };
    if path.is_empty() {
        let text = "a file needs a path, as in file:/var/lib/app/locks.db".to_owned();
        return Err(AddressError::Invalid(text));
    }
    let path = PathBuf::from(path);
    let place = path.display().to_string();
    let opened = match make {
        Make::IfMissing => SqliteStore::open(path).await,
        Make::Never => SqliteStore::open_existing(path).await,
    };
    match opened {
        Ok(store) => Ok(Opened::new(place, Backend::Sqlite(store))),
        Err(error) => Err(AddressError::Store { place, error }),
    }
}
