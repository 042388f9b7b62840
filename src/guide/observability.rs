//! Spans, events and metrics.
//!
//! Every operation makes spans and events of `tracing`, with the target `leasehold`: operations, grants and
//! releases at DEBUG, renewals at TRACE, a lease at risk and a lost one at WARN, what an operator removes at
//! INFO.
//!
//! With the feature `metrics` the same is counted and timed: acquires by outcome, waits, hold times, renewals and
//! how late they were, losses by reason, errors of the store; [`describe_metrics`](crate::describe_metrics)
//! tells an exporter what each means. `docs/observability.md` has tables of all of it, and what to alert on.
//!
//! Neither holds a credential. Keys and owners are in events, and never labels of a metric.
