//! Spans, events and metrics.
//!
//! Operations create spans and events of `tracing`, with the target `leasehold`:
//!
//! - WARN: what may need somebody: a lease is at risk, or lost while its guard lives; renewals are late; a release was
//!   given up; a process waits without a place; the work of a job or of a leader failed; a campaign failed; a follower
//!   cannot read who leads; a stream of the store failed; a document was left out of a list.
//! - INFO: a tick is left out; a term of a leader begins or ends; an operator evicted a holder, removed or purged
//!   locks, or released all leases of an owner.
//! - DEBUG: operations, grants, releases, and calls to the store that fail.
//! - TRACE: what happens all the time: renewals that succeed, grants from memory, guards that are dropped.
//!
//! With the feature `metrics` the library counts acquires by outcome, losses by reason, renewals, places in queues and
//! errors of the store. It measures how long callers waited, how long their turn took to come, how long leases were
//! held, and how late renewals were.
//! [`describe_metrics`](crate::describe_metrics) tells an exporter what each metric means. `docs/observability.md`
//! lists all events and metrics, and what to alert on.
//!
//! Events and metrics contain no credentials. Events contain keys and owners. The labels of metrics do not, because
//! each key would make a time series of its own.
