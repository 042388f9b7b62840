//! The document of a key after a change of its holders.

use std::time::Duration;

use mongodb::bson::{Document, doc};

use super::{
    expressions::{bounded, cleanup_at, is_held, lock, with},
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

/// The effect of a change of the holders.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RoomEffect {
    /// Others may be granted the key after the change.
    MakesRoom,
    MakesNoRoom,
}

/// The document with a list of these holders. The expression for them is evaluated once. If all of them have expired,
/// the document has no expiry, and the key is free from now on, or since it was free before.
pub(super) fn with_holders(holders: Document, effect: RoomEffect, retention: Duration) -> Document {
    let until = doc! { "$max": "$$holders.expires_at" };
    // A person may have freed the key by removing its expiry. The key then stays free.
    let is_live = doc! { "$and": [is_held(), { "$gt": [until.clone(), "$$NOW"] }] };
    let or_not = |value: Document| doc! { "$cond": [is_live.clone(), value, "$$REMOVE"] };
    let before = doc! { "$ifNull": ["$expires_at", "$released_at"] };
    let free_since = doc! { "$cond": [is_held(), "$$NOW", before] };
    let mut held = doc! {
        "holders": "$$holders",
        "expires_at": or_not(until.clone()),
        "released_at": { "$cond": [is_live.clone(), "$$REMOVE", free_since] },
    };
    if effect == RoomEffect::MakesRoom {
        held.insert("next", turn::NEXT);
    }
    let list = lock(
        "$fence",
        cleanup_at(bounded(until), Duration::ZERO, retention),
        held,
    );
    let list = doc! { "$cond": [{ "$eq": ["$$holders", []] }, released(), list] };
    with("holders", holders, list)
}
