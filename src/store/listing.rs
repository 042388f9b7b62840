//! How a store that reads documents makes a page of a list of them.

use chrono::{DateTime, Utc};

use crate::{
    messages::{Filter, Page},
    model::{Error, Key, LockRecord},
    rules,
};

/// Takes in the next document that a database found.
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
