//! Filters for MongoDB that stop the write of a stale holder, and changes that record the fence. Pure
//! functions, for any way to send them.

#[cfg(test)]
mod tests;

use mongodb::{
    bson::{Bson, Document, doc},
    options::UpdateModifications,
};

use crate::model::Fence;

/// Writes on MongoDB that a newer fence stops, without the help of
/// [`GuardedCollection`](crate::mongodb::GuardedCollection): for bulk writes, for options that it does not have,
/// and for a process that was told the fence and nothing else. Feature `mongodb`.
///
/// Use [`guard`](Fence::guard) and [`stamp`](Fence::stamp) together: a write that is guarded and not stamped
/// leaves no fence for the next one to compare with, and one that is stamped and not guarded is never
/// stopped, and may set the fence back. Send it with a write concern of a majority and the journal (`w: 1`
/// and the journal to a standalone server). A write that a single member has confirmed can be rolled back,
/// one that is in no journal is lost with a kill, and the fence with it.
///
/// ```no_run
/// use leasehold::Fence;
/// use mongodb::bson::{Document, doc};
///
/// # async fn example(jobs: mongodb::Collection<Document>, fence: i64) -> mongodb::error::Result<()> {
/// let fence = Fence::new(fence);
/// let queued = doc! { "job": 7, "state": "queued" };
/// let done = jobs
///     .update_many(fence.guard(queued), fence.stamp(doc! { "$set": { "state": "done" } }))
///     .await?;
/// # Ok(())
/// # }
/// ```
impl Fence {
    /// A filter for the documents that this filter matches, without those that have seen a newer fence.
    /// Documents that have seen no fence yet, or this one, still match. So do those with a value in
    /// [`Fence::FIELD`] that is no number, which [`stamp`](Fence::stamp) overwrites.
    ///
    /// An upsert may match nothing because the document has seen a newer fence. It then inserts another
    /// document, unless the filter compares a unique field, such as `_id`, with one value: then the server
    /// refuses it with a duplicate key.
    pub fn guard(self, filter: Document) -> Document {
        let not_newer = doc! { "$not": { "$gt": self.get() } };
        doc! { "$and": [filter, { Self::FIELD: not_newer }] }
    }

    /// A filter for the documents that this filter matches and that have seen a newer fence. After a guarded
    /// write that matched nothing it tells whether the write was stopped, or there is nothing to find.
    pub fn overtaken(self, filter: Document) -> Document {
        doc! { "$and": [filter, { Self::FIELD: { "$gt": self.get() } }] }
    }

    /// The update, and the fence with it: in the `$set` of an update document, or as the last stage of a
    /// pipeline. An empty update document becomes one that sets the fence alone.
    ///
    /// Changes of the update itself to [`Fence::FIELD`] are left out, so it can neither lower the fence nor
    /// remove it. An update that renames another field to that name is refused by the server.
    ///
    /// The fence is as durable as the write: send it with a write concern of a majority and the journal.
    pub fn stamp(self, update: impl Into<UpdateModifications>) -> UpdateModifications {
        match update.into() {
            UpdateModifications::Document(update) => self.stamp_operators(update).into(),
            UpdateModifications::Pipeline(mut stages) => {
                // As the last stage, so that no other stage overwrites the field.
                stages.push(doc! { "$set": { Self::FIELD: self.get() } });
                stages.into()
            }
            // A kind of update that a later driver may bring cannot be stamped. The empty update that takes
            // its place is refused.
            _ => Document::new().into(),
        }
    }

    /// The whole document with the fence in it, to replace another or to be inserted.
    pub fn stamp_document(self, mut document: Document) -> Document {
        document.insert(Self::FIELD, self.get());
        document
    }

    fn stamp_operators(self, update: Document) -> Document {
        // The server refuses two operators on one field, or on a part of it.
        let mut update: Document = update.into_iter().filter_map(without_the_fence).collect();
        match update.get_mut("$set") {
            None => drop(update.insert("$set", doc! { Self::FIELD: self.get() })),
            Some(Bson::Document(fields)) => drop(fields.insert(Self::FIELD, self.get())),
            // The server refuses a `$set` that is no document.
            Some(_) => {}
        }
        update
    }
}

/// An operator of an update, without its changes to the fence; `None` if nothing is left of it, which some
/// servers refuse.
fn without_the_fence((operator, change): (String, Bson)) -> Option<(String, Bson)> {
    let Bson::Document(fields) = change else {
        return Some((operator, change));
    };
    let before = fields.len();
    let others: Document = fields
        .into_iter()
        .filter(|(field, _)| field.split('.').next() != Some(Fence::FIELD))
        .collect();
    let emptied = others.is_empty() && before > 0;
    (!emptied).then_some((operator, others.into()))
}
