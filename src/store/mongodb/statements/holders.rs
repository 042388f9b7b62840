//! The document of a key after a change of its holders.

use std::time::Duration;

use mongodb::bson::{Document, doc};

use super::{
    expressions::{bounded, cleanup_at, is_held, lock},
    turn,
};

pub(super) fn holders_that(condition: Document) -> Document {
    doc! { "$filter": { "input": "$holders", "cond": condition } }
}

/// The document of a key without holders. Its clean-up date stays as it was.
pub(super) fn released() -> Document {
    let left = doc! { "released_at": "$$NOW", "next": turn::NEXT };
    lock("$fence", "$cleanup_at", left)
}

/// What a change of the holders is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Others may be granted the key after it.
    MakesRoom,
    MakesNoRoom,
}

/// The document with these holders, in a list. The expression for them is evaluated once. The expiry of a key that is free
/// moves to no later date, whatever the holders say.
pub(super) fn with_holders(holders: Document, effect: Effect, retention: Duration) -> Document {
    let until = doc! { "$max": "$$holders.expires_at" };
    let mut held = doc! {
        "holders": "$$holders",
        "expires_at": { "$cond": [
            { "$or": [is_held(), { "$lt": [until.clone(), "$expires_at"] }] },
            until.clone(),
            "$expires_at",
        ] },
    };
    if effect == Effect::MakesRoom {
        held.insert("next", turn::NEXT);
    }
    let list = lock(
        "$fence",
        cleanup_at(bounded(until), Duration::ZERO, retention),
        held,
    );
    doc! { "$let": {
        "vars": { "holders": holders },
        "in": { "$cond": [{ "$eq": ["$$holders", []] }, released(), list] },
    } }
}
