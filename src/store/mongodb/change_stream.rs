//! Keys that become free, or have room again, out of a change stream.
//!
//! The server looks for the changes that can let somebody in, and sends nothing of the rest:
//!
//! - After a release by the last holder, and after an eviction, the latest expiry is now.
//! - A release by one of several makes the list of holders shorter; those behind it move up. Under a
//!   minimum hold the holder has another name instead. A downgrade changes a mode. The fence stays.
//!
//! Renewals change nothing but times. Grants and upgrades raise the fence; a grant to an owner that is
//! here already does not, but adds a holder and leaves the others alone. So neither is told, except for
//! such a grant in the place of holders that have expired.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use mongodb::{
    bson::{Bson, Document, doc},
    change_stream::ChangeStream,
    options::ReadConcern,
};

use super::{
    CLOCK_MARGIN, MongoStore,
    error::{code, sorted},
};
use crate::{
    model::{Error, Key},
    store::FreedKeys,
};

/// How long the server waits for something to tell before it answers that there is nothing.
const LOOK: Duration = Duration::from_secs(1);
/// The server stands alone; it is older than 6.0 and does not know `showExpandedEvents`.
const CANNOT_TELL: [i32; 2] = [40_573, 40_415];

impl MongoStore {
    pub(super) async fn watch_freed(&self) -> Result<Option<FreedKeys>, Error> {
        let opened = self
            .locks
            .reads()
            .watch()
            .pipeline(pipeline())
            // The only one that a change stream takes.
            .read_concern(ReadConcern::majority())
            .max_await_time(LOOK)
            // As it is anyway. But a server that has not heard of it has no `wallTime` either: it is
            // to say so now, and not to find that no event ever matches.
            .show_expanded_events(false)
            .await;
        match opened {
            Ok(events) => Ok(Some(stream::try_unfold(events.with_type(), look).boxed())),
            Err(error) if code(&error).is_some_and(|at| CANNOT_TELL.contains(&at)) => Ok(None),
            Err(error) => Err(sorted(error)),
        }
    }
}

/// Takes the next event, or asks once whether there is one. Nothing once the server has closed the
/// stream: it would go on saying so without a pause.
async fn look(
    mut events: ChangeStream<Document>,
) -> Result<Option<(Vec<Key>, ChangeStream<Document>)>, Error> {
    let event = events.next_if_any().await.map_err(sorted)?;
    if event.is_none() && !events.is_alive() {
        return Ok(None);
    }
    let key = event.as_ref().and_then(key);
    Ok(Some((key.into_iter().collect(), events)))
}

/// The key in an event; `None` if the id is no key, as then it is no lock of ours.
fn key(event: &Document) -> Option<Key> {
    let id = event
        .get_document("documentKey")
        .ok()?
        .get_str("_id")
        .ok()?;
    Key::new(id).ok()
}

/// Lets the events pass after which somebody may be let in, and of each no more than the key and the
/// resume token (`_id`), which the driver needs.
fn pipeline() -> [Document; 2] {
    [
        doc! { "$match": {
            "operationType": { "$in": ["update", "replace"] },
            "$expr": { "$or": [is_free(), has_room()] },
        } },
        doc! { "$project": { "documentKey._id": 1 } },
    ]
}

/// Whether nobody is live any more.
fn is_free() -> Document {
    // An update is logged as its changed fields, or as the whole document where that is shorter.
    let expires_at = doc! { "$ifNull": [
        "$updateDescription.updatedFields.expires_at",
        "$fullDocument.expires_at",
    ] };
    // The time of the oplog entry is taken later than `$$NOW`, but on a sharded cluster on another
    // server. The shortest ttl is longer than the margin, so a grant does not pass.
    let now = doc! { "$add": ["$wallTime", CLOCK_MARGIN.as_millis() as i64] };
    doc! { "$let": {
        "vars": { "expires_at": expires_at },
        "in": { "$and": [
            // An update that leaves the field alone has none, which sorts before every date.
            { "$eq": [{ "$type": "$$expires_at" }, "date"] },
            { "$lte": ["$$expires_at", now] },
        ] },
    } }
}

/// Whether one of several holders left, or lets others in beside itself.
fn has_room() -> Document {
    // A list that an event lacks would end the stream with an error.
    let list = |list: Bson| doc! { "$ifNull": [list, []] };
    let fields = doc! { "$objectToArray": "$updateDescription.updatedFields" };
    // The names have dots in them; they are no paths.
    let renamed = doc! { "$anyElementTrue": { "$map": {
        "input": list(fields.into()),
        "in": { "$regexMatch": {
            "input": "$$this.k",
            "regex": r"^holders(\.[0-9]+\.(lease|mode))?$",
        } },
    } } };
    let shorter = list("$updateDescription.truncatedArrays.field".into());
    let fewer = doc! { "$in": ["holders", shorter] };
    doc! { "$cond": [
        { "$eq": ["$operationType", "update"] },
        { "$and": [
            { "$eq": [{ "$type": "$updateDescription.updatedFields.fence" }, "missing"] },
            { "$or": [fewer, renamed] },
        ] },
        // A whole document does not say what was there before. It is rare, and a hint is harmless.
        { "$isArray": "$fullDocument.holders" },
    ] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_no_key_is_skipped() {
        let event = |id: Bson| doc! { "_id": {}, "documentKey": { "_id": id } };
        assert_eq!(key(&event("$k.".into())).unwrap().as_str(), "$k.");
        for id in [5.into(), "".into(), "x".repeat(513).into()] {
            assert_eq!(key(&event(id)), None);
        }
        assert_eq!(key(&doc! { "_id": {} }), None);
    }
}
