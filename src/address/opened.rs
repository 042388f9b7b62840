//! What is opened at an address: a store, and the client behind it.

use std::{fmt, sync::Arc};

#[cfg(feature = "mongodb")]
use mongodb::{Collection, bson::Document};

#[cfg(feature = "elasticsearch")]
use crate::store::elasticsearch::ElasticsearchStore;
#[cfg(feature = "opensearch")]
use crate::store::elasticsearch::OpenSearchStore;
#[cfg(feature = "mongodb")]
use crate::store::mongodb::MongoStore;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::SqliteStore;
use crate::{model::Error, store::Store};

/// A store that [`open`](super::open), which has an example, has opened. Clones are one store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Opened {
    /// The store, for [`Leases::new`](crate::Leases::new).
    pub store: Arc<dyn Store>,
    /// Where it is, for messages: hosts and a collection or an alias, or the path of a file. It contains no credentials.
    pub place: String,
    /// The same store by its own type, for what only this kind of store has.
    pub backend: Backend,
}

/// A store by its own type, and the client that it uses.
///
#[cfg_attr(feature = "sqlite", doc = "```")]
#[cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
/// use leasehold::address::{self, AddressError, Backend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), AddressError> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let address = format!("file:{}", folder.path().join("locks.db").display());
/// match address::open(&address).await?.backend {
///     Backend::Sqlite(store) => println!("for this host alone: {}", store.path().display()),
///     _ => println!("for several hosts"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Backend {
    /// A file.
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteStore),
    /// MongoDB, and the collection of the locks.
    #[cfg(feature = "mongodb")]
    MongoDb(MongoStore, Collection<Document>),
    /// Elasticsearch, and its client.
    #[cfg(feature = "elasticsearch")]
    Elasticsearch(Arc<ElasticsearchStore>, elasticsearch::Elasticsearch),
    /// OpenSearch, and its client.
    #[cfg(feature = "opensearch")]
    OpenSearch(Arc<OpenSearchStore>, opensearch::OpenSearch),
}

impl Opened {
    #[cfg(any(
        feature = "elasticsearch",
        feature = "mongodb",
        feature = "opensearch",
        feature = "sqlite"
    ))]
    pub(super) fn new(place: String, backend: Backend) -> Self {
        let store: Arc<dyn Store> = match &backend {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite(store) => Arc::new(store.clone()),
            #[cfg(feature = "mongodb")]
            Backend::MongoDb(store, _) => Arc::new(store.clone()),
            #[cfg(feature = "elasticsearch")]
            Backend::Elasticsearch(store, _) => store.clone(),
            #[cfg(feature = "opensearch")]
            Backend::OpenSearch(store, _) => store.clone(),
        };
        Self {
            store,
            place,
            backend,
        }
    }

    /// Sets the store up, as `prepare` of its type does: a search cluster needs that once, and MongoDB removes dead locks
    /// by itself only after it. A file needs nothing. It may be called as often as you like.
    ///
    /// # Errors
    ///
    /// Those of `prepare` of the store, among them [`Error::NotPrepared`] and [`Error::Denied`].
    ///
    /// # Cancel safety
    ///
    /// That of `prepare` of the store: call it again.
    pub async fn prepare(&self) -> Result<(), Error> {
        match &self.backend {
            // Opening the file has created its tables.
            #[cfg(feature = "sqlite")]
            Backend::Sqlite(_) => Ok(()),
            #[cfg(feature = "mongodb")]
            Backend::MongoDb(store, _) => store.prepare().await,
            #[cfg(feature = "elasticsearch")]
            Backend::Elasticsearch(store, _) => store.prepare().await,
            #[cfg(feature = "opensearch")]
            Backend::OpenSearch(store, _) => store.prepare().await,
            #[cfg(not(any(
                feature = "elasticsearch",
                feature = "mongodb",
                feature = "opensearch",
                feature = "sqlite"
            )))]
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client is left out, because it would show the credentials.
        f.debug_struct("Opened")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}
