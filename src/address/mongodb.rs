//! Opens the store in a collection of MongoDB.

use std::time::Duration;

use mongodb::{
    Client,
    bson::Document,
    error::{Error as DriverError, ErrorKind},
    options::{ClientOptions, ConnectionString, ServerAddress},
};

use super::{
    error::{AddressError, invalid},
    opened::{Backend, Opened},
};
use crate::store::mongodb::MongoStore;

/// How long the driver looks for a server, unless the address says it. The driver's default of 30 s is too long for a
/// person at a terminal.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(2);
/// How many hosts of a store are named.
const HOSTS_SHOWN: usize = 3;
/// An address with all parts, for errors.
const FORM: &str = "mongodb://user:password@host:27017/database.collection";

pub(super) async fn open(address: &str, classic: bool) -> Result<Opened, AddressError> {
    let (address, collection) = collection_of(address).ok_or_else(|| invalid("MongoDB", FORM))?;
    let options = options_of(&address).await;
    let options = options.map_err(|error| unreadable(error, &address))?;
    let hosts = named(&options.hosts);
    let client = Client::with_options(options).map_err(|error| unreadable(error, &address))?;
    let database = client
        .default_database()
        .unwrap_or_else(|| client.database("leasehold"));
    let locks = database.collection::<Document>(collection.as_deref().unwrap_or("locks"));
    let place = format!("{hosts}, {}", locks.namespace());
    let mut store = MongoStore::new(&locks);
    if classic {
        store = store.without_pipelines();
    }
    Ok(Opened::new(place, Backend::MongoDb(store, locks)))
}

/// The driver's options for an address, which it knows.
async fn options_of(address: &str) -> Result<ClientOptions, DriverError> {
    let mut options = ClientOptions::parse(address).await?;
    let timeout = &mut options.server_selection_timeout;
    timeout.get_or_insert(SERVER_SELECTION_TIMEOUT);
    Ok(options)
}

/// Splits an address with `/app.jobs` into an address with the database `app` alone, as the driver expects it, and the
/// name of the collection, if there is one. `None` if the text after the slash may be the rest of a password that is
/// not percent-encoded.
fn collection_of(address: &str) -> Option<(String, Option<String>)> {
    let end = address.find('?').unwrap_or(address.len());
    let (before, options) = address.split_at(end);
    let (scheme, rest) = before.split_once("://")?;
    let Some((hosts, namespace)) = rest.split_once('/') else {
        return Some((address.to_owned(), None));
    };
    if namespace.contains(['/', '@']) {
        return None;
    }
    let Some((database, collection)) = namespace.split_once('.') else {
        return Some((address.to_owned(), None));
    };
    // The name of the collection is not percent-decoded.
    if database.is_empty() || collection.is_empty() || collection.contains('%') {
        return None;
    }
    let address = format!("{scheme}://{hosts}/{database}{options}");
    Some((address, Some(collection.to_owned())))
}

/// The first of these hosts, and how many more there are.
fn named(hosts: &[ServerAddress]) -> String {
    let shown = hosts.iter().take(HOSTS_SHOWN).map(ServerAddress::to_string);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match hosts.len().saturating_sub(HOSTS_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What is wrong with the options of an address, if it is valid without them.
///
/// The option is told by its place: its text may be the rest of a password that is not percent-encoded.
fn refused_option(address: &str) -> Option<String> {
    let (before, options) = address.split_once('?')?;
    let parse = |options: &str| ConnectionString::parse(format!("{before}?{options}"));
    if options.contains('@') || parse("appName=leasehold").is_err() {
        return None;
    }
    for (number, option) in (1..).zip(options.split('&')) {
        let Err(error) = parse(option) else { continue };
        // The driver names an option that it knows.
        let text = error.to_string();
        let similar = text.split_once("similar name exists: ");
        let similar = similar.map(|(_, rest)| {
            let name: String = rest
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric())
                .collect();
            format!("; the name of a similar option is {name}")
        });
        return Some(format!(
            "option {number} after the ? of the address is none of the MongoDB driver's, or has a value that it does \
             not take{}",
            similar.unwrap_or_default()
        ));
    }
    Some(
        "the options after the ? of the address do not go together for the MongoDB driver"
            .to_owned(),
    )
}

/// The error for an address that the driver refuses. It leaves out the driver's message, which may quote the address.
fn unreadable(error: DriverError, address: &str) -> AddressError {
    match *error.kind {
        ErrorKind::DnsResolve { .. } => AddressError::Unreachable(
            "the host of the address has no DNS entry for MongoDB: check its name".to_owned(),
        ),
        _ => match refused_option(address) {
            Some(problem) => AddressError::Invalid(problem),
            None => invalid("MongoDB", FORM),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_is_looked_for_for_two_seconds_unless_the_address_says_otherwise() {
        for (options, millis) in [("", 2_000), ("?serverSelectionTimeoutMS=100", 100)] {
            let options = options_of(&format!("mongodb://127.0.0.1:1/app{options}")).await;
            let timeout = options.unwrap().server_selection_timeout;
            assert_eq!(timeout, Some(Duration::from_millis(millis)));
        }
    }
}
