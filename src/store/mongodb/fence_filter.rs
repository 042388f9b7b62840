//! Filters for MongoDB that stop the write of a stale holder, and updates that record the fence. These are pure
//! functions, for any way to send them.

#[cfg(test)]
mod tests;

use mongodb::{
    bson::{Bson, Document, doc},
    options::UpdateModifications,
};

use crate::model::Fence;

/// Writes on MongoDB that a newer fence stops, without [`GuardedCollection`](crate::fencing::GuardedCollection): for
/// bulk writes, for options that it does not have, and for a process that was given only the fence. Features `mongodb` and
/// `fencing`.
///
/// Use [`guard`](Fence::guard) and [`stamp`](Fence::stamp) together. A write that is guarded and not stamped leaves no
/// fence for the next write to compare with. A write that is stamped and not guarded is never stopped, and may set the
/// fence back.
///
/// Use a write concern of a majority and the journal; for a standalone server, `w: 1` and the journal. A write that
/// only one member has confirmed can be rolled back, and a write that is in no journal is lost with a kill. The fence
/// is lost with it.
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
    /// A filter for the documents that `filter` matches and that have seen no newer fence.
    ///
    /// Documents that have seen no fence yet, or this one, still match. So do documents whose value in [`Fence::FIELD`]
    /// is neither a number nor a list with one; [`stamp`](Fence::stamp) overwrites it.
    ///
    /// An upsert may match nothing because the document has seen a newer fence. It then inserts another document,
    /// unless the filter compares a unique field, such as `_id`, with one value: the server then refuses the insert
    /// with a duplicate key.
    pub fn guard(self, filter: Document) -> Document {
        let not_newer = doc! { "$not": { "$gt": self.get() } };
        doc! { "$and": [filter, { Self::FIELD: not_newer }] }
    }

    /// A filter for the documents that `filter` matches and that have seen a newer fence. If a guarded write matched
    /// nothing, a read with this filter tells the reason: a newer fence has stopped the write, or there is no such
    /// document.
    pub fn overtaken(self, filter: Document) -> Document {
        doc! { "$and": [filter, { Self::FIELD: { "$gt": self.get() } }] }
    }

    /// The update, with the fence added: in the `$set` of an update document, or as the last stage of a pipeline. An
    /// empty update document becomes one that sets only the fence.
    ///
    /// Changes of the update itself to [`Fence::FIELD`] are left out, so it can neither lower nor remove the fence. The
    /// server refuses an update that renames another field to that name.
    ///
    /// The fence is as durable as the write: use a write concern of a majority and the journal.
    pub fn stamp(self, update: impl Into<UpdateModifications>) -> UpdateModifications {
        match update.into() {
            UpdateModifications::Document(update) => self.stamp_operators(update).into(),
            UpdateModifications::Pipeline(mut stages) => {
                // The last stage, so that no other stage overwrites the field.
                stages.push(doc! { "$set": { Self::FIELD: self.get() } });
                stages.into()
            }
            // A later driver may have a new kind of update, which cannot be stamped. The empty update that replaces it
            // is refused.
            _ => Document::new().into(),
        }
    }

    /// The whole document with the fence in it, for a replacement or an insert.
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
            // The server refuses a `$set` that is not a document.
            Some(_) => {}
        }
        update
    }
}

/// An operator of an update, without its changes to the fence. `None` if nothing is left of it, because some servers
/// refuse an empty operator.
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
