//! Pages of a list of locks, for stores that read whole documents.

use chrono::{DateTime, Utc};

use crate::{
    messages::{Filter, Page},
    model::{Error, Key, LockRecord},
    rules,
};

/// Adds the next document that the database has found to a page, if the document matches the filter.
pub(super) fn add(
    page: &mut Page,
    key: Key,
    lock: Result<(LockRecord, DateTime<Utc>), Error>,
    filter: &Filter,
) {
    match lock {
        Ok((record, now)) => {
            let state = rules::inspect(&record, now);
            if rules::matches(&state, filter) {
                page.locks.push(state);
            }
        }
        // One bad document must not hide all others.
        Err(error) => tracing::warn!(target: "leasehold", %key, %error, "left out of a list"),
    }
    page.next = Some(key);
}
