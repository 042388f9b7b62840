//! Majority writes and primary reads, whatever a collection's defaults are.

use std::time::Duration;

use mongodb::{
    Collection,
    bson::{Document, doc},
    options::{
        Acknowledgment, CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria,
        WriteConcern,
    },
};

/// How long the server waits for a majority before it says that there is none. Without a bound it
/// waits for ever, and the connection with it.
const MAJORITY_TIMEOUT: Duration = Duration::from_secs(5);

/// The same collection with majority writes and primary reads.
pub(crate) fn with_our_concerns<T: Send + Sync, U: Send + Sync>(
    collection: &Collection<T>,
) -> Collection<U> {
    let majority = WriteConcern::builder()
        .w(Acknowledgment::Majority)
        .w_timeout(MAJORITY_TIMEOUT)
        .build();
    let options = CollectionOptions::builder()
        .write_concern(majority)
        .read_concern(ReadConcern::local())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .build();
    let namespace = collection.namespace();
    collection
        .client()
        .database(&namespace.db)
        .collection_with_options(&namespace.coll, options)
}

/// The write concern for a command that is put together here.
pub(crate) fn majority() -> Document {
    doc! { "w": "majority", "wtimeout": MAJORITY_TIMEOUT.as_millis() as i64 }
}
