//! Opens the store that an address names, for a program whose store is chosen when it runs.
//!
//! An address is a text, from the environment or a file of settings, for example:
//!
//! | address | store | features |
//! |---|---|---|
//! | `file:PATH` | [`SqliteStore`](crate::SqliteStore) | `sqlite` |
//! | `mongodb://HOST[:PORT][/DATABASE[.COLLECTION]]`, `mongodb+srv://…` | [`MongoStore`](crate::MongoStore); without a collection `locks`, without a database `leasehold` | `mongodb`; for `mongodb+srv` also `dns-resolver` of the crate `mongodb` |
//! | the same with `classic+` before it | the same, [without pipelines](crate::MongoStore::without_pipelines) | `mongodb` |
//! | `es+http://HOST:PORT[,HOST:PORT…][/PREFIX][/ALIAS]`, `es+https://…` | [`ElasticsearchStore`](crate::ElasticsearchStore) behind the alias, or behind `leasehold` | `elasticsearch`; for `https` also `address-tls` |
//! | `opensearch+http://…`, `opensearch+https://…` | the same for [`OpenSearchStore`](crate::OpenSearchStore) | `opensearch`; for `https` also `address-tls` |
//! | `http://…`, `https://…` | Elasticsearch or OpenSearch, whichever answers | as above |
//!
//! A user and a password stand before the host, as in `mongodb://user:password@host/app`, with their special characters
//! percent-encoded. The options of an address of MongoDB are those of its driver. Those of a search cluster are
//! `tlsCAFile=PATH` (a certificate authority, in PEM, that is trusted besides those of the system), `apiKey=TEXT` (the
//! key that Elasticsearch calls `encoded`, instead of a user) and `scripts=stored` (for a cluster that forbids inline
//! scripts), as in `es+https://a:9200,b:9200/locks?tlsCAFile=/etc/es/http_ca.crt`.
//!
//! Requests to a search cluster go to one node until it fails, and then to the next. They go by the proxy that the
//! environment names (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`), unless all nodes are on this host.
//!
//! A store that needs an option that no address has, such as [`MongoStore::retention`](crate::MongoStore::retention), is
//! made by its own type instead.

mod error;
#[cfg(feature = "sqlite")]
mod file;
mod meant;
#[cfg(feature = "mongodb")]
mod mongodb;
mod opened;
mod scheme;
#[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
mod search;

pub use self::{
    error::AddressError,
    opened::{Backend, Opened},
};
use self::{
    error::unknown,
    scheme::{Make, Scheme},
};

/// Opens the store at an address, and creates a file that does not exist. [The module](self) lists the addresses.
///
/// A search engine is asked whether it is Elasticsearch or OpenSearch, and may take 10 s to answer. MongoDB is not asked
/// anything yet: what is wrong with the server is told by the first operation. Unless the address sets
/// `serverSelectionTimeoutMS`, that operation looks for a server for 2 s.
///
/// # Errors
///
/// [`AddressError`] says what is wrong in one sentence, which contains no part of a user, a password or a key.
///
/// # Cancel safety
///
/// Cancel safe. A file that was created stays.
///
/// # Example
///
#[cfg_attr(feature = "sqlite", doc = "```")]
#[cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
/// use std::time::Duration;
/// use leasehold::{Leases, address};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let default = format!("file:{}", folder.path().join("locks.db").display());
/// let from_environment = std::env::var("APP_LOCKS");
/// let opened = address::open(&from_environment.unwrap_or(default)).await?;
/// opened.prepare().await?;
/// let leases = Leases::new(opened.store);
/// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
pub async fn open(address: &str) -> Result<Opened, AddressError> {
    opened(address, Make::IfMissing).await
}

/// As [`open`], but never creates a file: for tools that only look, and whose path may be mistyped.
///
/// # Errors
///
/// As for [`open`]; and [`AddressError::Store`] with [`Error::File`](crate::Error::File) if the file does not exist.
///
/// # Cancel safety
///
/// Cancel safe.
///
/// # Example
///
#[cfg_attr(feature = "sqlite", doc = "```")]
#[cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let refused = leasehold::address::open_existing("file:no such file.db").await;
/// println!("{}", refused.unwrap_err());
/// # }
/// ```
pub async fn open_existing(address: &str) -> Result<Opened, AddressError> {
    opened(address, Make::Never).await
}

async fn opened(address: &str, make: Make) -> Result<Opened, AddressError> {
    let (scheme, rest) = scheme::of(address).ok_or_else(|| unknown(address))?;
    // Without the features of stores nothing else uses these.
    let _ = (rest, make);
    match scheme {
        #[cfg(feature = "sqlite")]
        Scheme::File => file::open(rest, make).await,
        #[cfg(not(feature = "sqlite"))]
        Scheme::File => Err(error::missing(scheme.feature())),
        #[cfg(feature = "mongodb")]
        Scheme::MongoDb { classic } => mongodb::open(rest, classic).await,
        #[cfg(not(feature = "mongodb"))]
        Scheme::MongoDb { .. } => Err(error::missing(scheme.feature())),
        #[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
        Scheme::Search(wanted) => search::open(rest, wanted).await,
        #[cfg(not(any(feature = "elasticsearch", feature = "opensearch")))]
        Scheme::Search(_) => Err(error::missing(scheme.feature())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `scripts/nightly` runs this with the features of each store alone.
    #[tokio::test]
    async fn an_address_of_a_store_that_is_switched_off_names_the_feature() {
        let search = cfg!(any(feature = "elasticsearch", feature = "opensearch"));
        for (address, is_on, feature) in [
            ("file:", cfg!(feature = "sqlite"), "sqlite"),
            (
                "mongodb://me:hunter2@",
                cfg!(feature = "mongodb"),
                "mongodb",
            ),
            (
                "es+http://me:hunter2@",
                cfg!(feature = "elasticsearch"),
                "elasticsearch",
            ),
            (
                "opensearch+http://me:hunter2@",
                cfg!(feature = "opensearch"),
                "opensearch",
            ),
            ("http://me:hunter2@", search, "elasticsearch or opensearch"),
            (
                "https://127.0.0.1:1",
                !search || cfg!(feature = "address-tls"),
                if search {
                    "address-tls"
                } else {
                    "elasticsearch or opensearch"
                },
            ),
        ] {
            let error = open(address).await.unwrap_err();
            let missing = match &error {
                AddressError::MissingFeature { feature } => Some(*feature),
                _ => None,
            };
            let is_missing = !is_on || address.starts_with("https") && !search;
            assert_eq!(missing, is_missing.then_some(feature), "{address}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_text_that_is_no_address_is_answered_with_the_one_that_was_meant() {
        let error = open("localhost:27017").await.unwrap_err();
        let told = "localhost:27017 is not the address of a store: did you mean mongodb://localhost:27017?";
        assert_eq!(error.to_string(), told);
    }

    #[tokio::test]
    async fn a_text_that_is_no_address_is_answered_with_the_forms() {
        for address in ["", "hunter2", "postgres://me:hunter2@host/app", "es+file:a"] {
            let error = open(address).await.unwrap_err();
            assert!(matches!(error, AddressError::Invalid(_)), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains("mongodb://") && !text.contains("hunter2"),
                "{text}"
            );
        }
    }
}
