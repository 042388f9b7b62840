//! `Pipelines`: the store while its changes are pipelines. `statements.rs` makes the pipelines.

use super::{MongoStore, statement_clock::StatementClock};

/// A store whose changes are pipelines, with the operations of [`Store`](crate::store::Store). It is made for one
/// operation, after the store has asked for its dialect. So no step of the operation has to ask again.
#[derive(Clone, Copy)]
pub(super) struct Pipelines<'a> {
    pub(super) store: &'a MongoStore,
    /// Where each statement of the operation gets its time from.
    pub(super) statement_clock: StatementClock,
}
