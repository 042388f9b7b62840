//! Which dialect a store speaks: whether its changes are pipelines, and whose clock these ask.
//!
//! | deployment | dialect |
//! |---|---|
//! | standalone server, replica set | pipelines, by `$$NOW` |
//! | sharded cluster with the expression `$currentDate` | pipelines, by that expression |
//! | any other sharded cluster | classic |
//! | any, after [`MongoStore::without_pipelines`] | classic |
//!
//! A collection with documents of the classic dialect stays with it when its cluster is upgraded.

use super::statement_clock::StatementClock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Pipelines(StatementClock),
    Classic,
}
