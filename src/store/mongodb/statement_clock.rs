//! Whose clock a statement uses.
//!
//! Statements are written with `$$NOW`. That is the time of the process that gets the command from the client: the
//! server with the document, or a router of a sharded cluster. Routers often run beside the applications, so their
//! clocks are the clocks of the clients. There, `$$NOW` is replaced by an expression that the shard evaluates.
//!
//! Such an expression has another value each time it is evaluated, so an update binds it to a variable once. The time
//! in the answer is later by as long as the server takes for the update.

use mongodb::bson::{Bson, Document, doc};

use super::statements;

/// Where a statement gets its time from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatementClock {
    /// `$$NOW`.
    Command,
    /// The shard, by the expression `$currentDate`, which servers have from 8.3 on.
    ShardDate,
}

const NOW: &str = "$$NOW";
/// The variable with the time of the shard, in an update or a condition.
const BOUND: &str = "$$clock";

impl StatementClock {
    /// An update with this clock.
    pub(super) fn update(self, pipeline: Vec<Document>) -> Vec<Document> {
        match self {
            Self::Command => pipeline,
            Self::ShardDate => pipeline.into_iter().map(stage).collect(),
        }
    }

    /// One of the changes of an `update` command with this clock.
    pub(super) fn statement(self, mut statement: Document) -> Document {
        if self != Self::Command
            && let Some(Bson::Array(pipeline)) = statement.get_mut("u")
        {
            for it in pipeline.iter_mut() {
                if let Bson::Document(it) = it {
                    *it = stage(std::mem::take(it));
                }
            }
        }
        statement
    }

    /// A filter with this clock. Only its `$expr` contains a time.
    pub(super) fn filter(self, mut filter: Document) -> Document {
        if self != Self::Command
            && let Some(condition) = filter.remove("$expr")
        {
            filter.insert("$expr", bound(condition));
        }
        filter
    }

    /// What an answer contains: see [`statements::projection`].
    pub(super) fn projection(self) -> Document {
        let mut shown = statements::projection();
        if self != Self::Command {
            shown.insert("now", shard_date());
        }
        shown
    }
}

/// The time of the shard, as an expression.
pub(super) fn shard_date() -> Document {
    doc! { "$currentDate": {} }
}

/// An expression with the time of the shard, computed once, instead of `$$NOW`.
fn bound(value: Bson) -> Document {
    doc! { "$let": { "vars": { "clock": shard_date() }, "in": with_bound(value) } }
}

/// A stage of an update with the time of the shard.
fn stage(stage: Document) -> Document {
    let bound = |(operator, value): (String, Bson)| (operator, bound(value).into());
    stage.into_iter().map(bound).collect()
}

/// The expression, with the variable instead of `$$NOW`.
fn with_bound(value: Bson) -> Bson {
    match value {
        Bson::String(text) if text == NOW => BOUND.into(),
        Bson::Array(items) => items.into_iter().map(with_bound).collect(),
        // A literal is a text of a user.
        Bson::Document(document) if document.contains_key("$literal") => document.into(),
        Bson::Document(document) => {
            let replaced = |(field, value)| (field, with_bound(value));
            let document: Document = document.into_iter().map(replaced).collect();
            document.into()
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        messages::AcquireRequest,
        model::{Key, LeaseId},
    };

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    const LEASE: &str = "11111111-1111-4111-8111-111111111111";

    fn acquire() -> Vec<Document> {
        let (key, owner) = (Key::new("key").unwrap(), NOW.into());
        let lease = LeaseId::parse(LEASE).unwrap();
        let request = AcquireRequest::exclusive(key, lease, owner, DAY);
        statements::acquire(&request, statements::Form::Full, DAY)
    }

    #[test]
    fn without_a_router_a_statement_stays_as_it_is() {
        let clock = StatementClock::Command;
        assert_eq!(clock.update(acquire()), acquire());
        assert_eq!(clock.projection(), statements::projection());
        let expired = statements::expired(&Key::new("key").unwrap());
        assert_eq!(clock.filter(expired.clone()), expired);
    }

    #[test]
    fn the_clock_of_a_shard_is_asked_once_for_an_update() {
        let (clock, asks) = (StatementClock::ShardDate, "$currentDate");
        let update = Bson::from(clock.update(acquire())).to_string();
        assert_eq!(update.matches(asks).count(), 1, "{update}");
        assert!(update.contains(BOUND));
        // This is the name of an owner, and stays.
        let owners = update.matches(r#""$literal": "$$NOW""#).count();
        assert_eq!(update.matches(NOW).count(), owners, "{update}");
        let expired = clock.filter(statements::expired(&Key::new(NOW).unwrap()));
        assert_eq!(expired.get_str("_id").unwrap(), NOW);
        let condition = expired.get("$expr").unwrap().to_string();
        assert_eq!(condition.matches(asks).count(), 1, "{condition}");
        assert!(!condition.contains(NOW), "{condition}");
        assert!(clock.projection().to_string().contains(asks));
    }
}
