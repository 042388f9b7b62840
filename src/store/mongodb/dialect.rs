//! The dialects: whether the changes of a store are pipelines, and whose clock they use.
//!
//! | deployment | dialect |
//! |---|---|
//! | standalone server, replica set | pipelines, by `$$NOW` |
//! | sharded cluster with the expression `$currentDate` | pipelines, by that expression |
//! | any other sharded cluster | classic |
//! | any, after [`MongoStore::without_pipelines`] | classic |
//!
//! A collection with documents of the classic dialect keeps that dialect when its cluster is upgraded.

use super::statement_clock::StatementClock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Pipelines(StatementClock),
    Classic,
}
