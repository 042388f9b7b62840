//! Whether a collection is fit for locks, by its description and its indexes. Pure functions.
//!
//! There is one judge for the first use of a store, for `prepare` and for `check`, so that none of them accepts what
//! another refuses. `look.rs` asks the server what is judged here.

use mongodb::bson::{Bson, Document};

use super::error::{not_prepared, unique_index, view};
use crate::model::{Error, quoted};

/// What the server tells of a collection.
#[derive(Debug, Default)]
pub(super) struct CollectionFacts {
    pub(super) database: String,
    /// The entry in the list of collections. `None` if the collection does not exist, or if this user may not see it.
    pub(super) listed: Option<Document>,
    /// The indexes, as the server lists them. `None` if this user may not see them.
    pub(super) indexes: Option<Vec<Document>>,
}

/// What a collection must be like for one kind of documents.
pub(super) struct Requirements {
    /// The top-level fields of the documents.
    fields: &'static [&'static [&'static str]],
    /// Those of them that are dates, or have some, but for the dates by which dead documents are removed.
    dates: &'static [&'static str],
    /// The fields of which each document has a value of its own.
    distinct: &'static [&'static str],
    /// One of them that must have a unique index. MongoDB makes that on `_id` by itself.
    unique: Option<&'static str>,
}

/// For the documents of [`MongoStore`](super::MongoStore).
pub(super) const FOR_LOCKS: Requirements = Requirements {
    fields: &[&OURS, &OURS_OF_CLASSIC],
    dates: &DATES,
    distinct: &["_id"],
    unique: None,
};

/// For the documents of [`MongoDistributedLock`](super::distributed_lock::MongoDistributedLock). None of their fields
/// is a date, so no TTL index removes them.
pub(super) const FOR_COUNTED_LOCKS: Requirements = Requirements {
    fields: &[&["_id", "key", "expire", "holder", "value"]],
    dates: &[],
    distinct: &["_id", "key"],
    unique: Some("key"),
};

/// As [`FOR_COUNTED_LOCKS`], before the unique index is made.
pub(super) const FOR_COUNTED_LOCKS_WITHOUT_INDEX: Requirements = Requirements {
    unique: None,
    ..FOR_COUNTED_LOCKS
};

/// The databases of the server itself. `local` is not replicated, so after a failover each of its locks would be free.
const OF_THE_SERVER: [&str; 3] = ["admin", "config", "local"];

impl Requirements {
    /// Fails if the documents cannot be kept in this collection. The error says what to do about it.
    pub(super) fn judge(&self, facts: &CollectionFacts) -> Result<(), Error> {
        match self.problem(facts) {
            Some(problem) => Err(not_prepared(problem)),
            None => Ok(()),
        }
    }

    fn problem(&self, facts: &CollectionFacts) -> Option<String> {
        if OF_THE_SERVER.contains(&&*facts.database) {
            return Some(format!(
                "its database {} is the server's own: give the locks a database of the application",
                facts.database
            ));
        }
        if let Some(problem) = facts.listed.as_ref().and_then(unfit) {
            return Some(problem);
        }
        let indexes = facts.indexes.as_deref()?;
        let named = |is_harmful: &dyn Fn(&Document) -> bool| {
            let harmful = indexes.iter().find(|index| is_harmful(index))?;
            Some(harmful.get_str("name").unwrap_or("without a name"))
        };
        if let Some(name) = named(&|index| self.removes_too_early(index)) {
            return Some(format!(
                "its TTL index {} removes locks that are held, or whose fence is ahead of the clock: drop it",
                quoted(name)
            ));
        }
        if let Some(name) = named(&|index| self.refuses_documents(index)) {
            return Some(unique_index(name));
        }
        let field = self.unique?;
        let is_there = indexes.iter().any(|index| is_unique_on(index, field));
        (!is_there).then(|| {
            format!("it has no unique index on {field}, so two processes could each insert the same lock")
        })
    }

    /// Whether a unique index refuses all documents but one.
    fn refuses_documents(&self, index: &Document) -> bool {
        let is_distinct = fields_of(index).any(|field| self.distinct.contains(&field));
        is_set(index, "unique") && !is_distinct && !self.excludes_documents(index)
    }

    /// Whether an index removes documents by a date that is not for their removal.
    fn removes_too_early(&self, index: &Document) -> bool {
        let is_date_of_ours = |path: &str| self.dates.contains(&first_field(path));
        index.contains_key("expireAfterSeconds")
            && fields_of(index).any(is_date_of_ours)
            && !self.excludes_documents(index)
    }

    /// Whether none of our documents is in an index: it is sparse, and they have none of its fields, or its filter is
    /// for a field that they have not. Other filters are not evaluated.
    fn excludes_documents(&self, index: &Document) -> bool {
        if is_set(index, "sparse") && fields_of(index).all(|field| self.is_foreign(field)) {
            return true;
        }
        let filter = index.get_document(FILTER).into_iter().flatten();
        filter
            .into_iter()
            .any(|(field, condition)| self.is_foreign(field) && requires(condition))
    }

    /// Whether a field, by its path, is in none of our documents.
    fn is_foreign(&self, path: &str) -> bool {
        let field = first_field(path);
        // `$and` and the like hold further conditions.
        !field.starts_with('$') && !self.fields.iter().any(|ours| ours.contains(&field))
    }
}

/// Fails for a collection in which an id can be there twice. An insert that comes late then meets no document of a later
/// holder.
#[cfg(feature = "fencing")]
pub(super) fn ensure_ids_are_unique(facts: &CollectionFacts) -> Result<(), Error> {
    let kind = facts.listed.as_ref().map(|listed| listed.get_str("type"));
    if matches!(kind, Some(Ok("timeseries"))) {
        return Err(super::error::failed(
            "the collection is a time series, in which an id can be there twice, so no late insert can be refused",
        ));
    }
    Ok(())
}

/// The filter of a partial index.
const FILTER: &str = "partialFilterExpression";

/// The fields of an index, by their paths.
fn fields_of(index: &Document) -> impl Iterator<Item = &str> {
    let keys = index.get_document("key").into_iter();
    keys.flat_map(|keys| keys.keys().map(String::as_str))
}

/// Whether an option of an index is on.
fn is_set(index: &Document, option: &str) -> bool {
    match index.get(option) {
        Some(Bson::Boolean(on)) => *on,
        Some(Bson::Int32(number)) => *number != 0,
        Some(Bson::Int64(number)) => *number != 0,
        Some(Bson::Double(number)) => *number != 0.0,
        _ => false,
    }
}

fn first_field(path: &str) -> &str {
    path.split('.').next().unwrap_or_default()
}

/// Whether this index lets only one document have a value of the field.
fn is_unique_on(index: &Document, field: &str) -> bool {
    fields_of(index).eq([field]) && is_set(index, "unique") && !index.contains_key(FILTER)
}

/// The fields of locks and limiters.
const OURS: [&str; 23] = [
    "_id",
    "schema",
    "fence",
    "lease",
    "owner",
    "acquired_at",
    "expires_at",
    "note",
    "cleanup_at",
    "waiters",
    "next",
    "done",
    "touched",
    "holders",
    "released_at",
    "released",
    "evicted",
    "limiter",
    "granted_at",
    "used",
    "last",
    "granted",
    "over_at",
];

/// The fields that are dates, or have some, but for the two by which dead documents are removed.
const DATES: [&str; 12] = [
    "acquired_at",
    "expires_at",
    "released_at",
    "granted_at",
    "renewed_at",
    "asked_at",
    "holders",
    "waiters",
    "next",
    "done",
    "evicted",
    "state",
];

/// The fields that only the documents of the classic dialect have.
const OURS_OF_CLASSIC: [&str; 6] = ["version", "asked_at", "free", "ttl", "renewed_at", "state"];

/// Why locks cannot be kept in a collection of this description.
fn unfit(collection: &Document) -> Option<String> {
    let options = collection.get_document("options");
    let has = |option: &str| options.as_ref().is_ok_and(|it| it.contains_key(option));
    let is_capped = options
        .as_ref()
        .is_ok_and(|it| it.get_bool("capped").unwrap_or(false));
    let problem = match collection.get_str("type") {
        Ok("view") => return Some(view()),
        Ok("timeseries") => "is a time series, in which an id can be there twice",
        _ if is_capped => "is capped, so the server may remove a lock that somebody has",
        _ if has("collation") => "has a collation, which may take two keys for one",
        _ => return None,
    };
    Some(format!(
        "it {problem}: give the locks a collection of their own"
    ))
}

/// Whether a condition of a filter is false for a document without the field.
fn requires(condition: &Bson) -> bool {
    match condition {
        Bson::Document(operators) => {
            operators.get_bool("$exists").is_ok_and(|exists| exists)
                || operators.contains_key("$type")
        }
        // An equality. Equality with null is also true for a document without the field.
        value => *value != Bson::Null,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    fn unique(keys: Document, more: Document) -> Document {
        let mut index = doc! { "name": "theirs", "key": keys, "unique": true };
        index.extend(more);
        index
    }

    #[test]
    fn a_unique_index_is_refused_unless_it_leaves_locks_out() {
        let sparse = |keys| unique(keys, doc! { "sparse": true });
        let partial = |filter: Document| unique(doc! { "owner": 1 }, doc! { FILTER: filter });
        let harmless = [
            sparse(doc! { "email": 1 }),
            sparse(doc! { "email": 1, "address.city": -1 }),
            partial(doc! { "email": { "$exists": true } }),
            partial(doc! { "email": { "$type": "string" } }),
            partial(doc! { "fence": { "$gt": 5 }, "kind": "person" }),
            unique(doc! { "email": 1, "_id": 1 }, doc! {}),
            unique(doc! { "email": 1 }, doc! { "unique": false }),
        ];
        for index in harmless {
            assert!(!FOR_LOCKS.refuses_documents(&index), "{index}");
        }
        let harmful = [
            unique(doc! { "email": 1 }, doc! {}),
            sparse(doc! { "owner": 1 }),
            sparse(doc! { "email": 1, "lease": 1 }),
            sparse(doc! { "_id.limiter": 1 }),
            partial(doc! { "owner": "somebody" }),
            partial(doc! { "_id.limiter": { "$exists": true } }),
            partial(doc! { "email": Bson::Null }),
            partial(doc! { "email": { "$eq": Bson::Null } }),
            partial(doc! { "email": { "$exists": false } }),
            partial(doc! { "$and": [{ "owner": { "$exists": true } }] }),
            partial(doc! {}),
        ];
        for index in harmful {
            assert!(FOR_LOCKS.refuses_documents(&index), "{index}");
        }
    }

    #[test]
    fn the_counted_locks_need_a_unique_index_on_their_key() {
        let problem = |requirements: &Requirements, indexes: Option<Vec<Document>>| {
            requirements.problem(&CollectionFacts {
                indexes,
                ..CollectionFacts::default()
            })
        };
        let on_key = |more| unique(doc! { "key": 1 }, more);
        let enough = [on_key(doc! {}), on_key(doc! { "sparse": true })];
        for index in enough {
            assert_eq!(problem(&FOR_COUNTED_LOCKS, Some(vec![index])), None);
        }
        let not_enough = [
            on_key(doc! { "unique": false }),
            on_key(doc! { FILTER: { "value": { "$gt": 0 } } }),
            unique(doc! { "key": 1, "value": 1 }, doc! {}),
        ];
        for index in not_enough {
            let indexes = || Some(vec![index.clone()]);
            let text = problem(&FOR_COUNTED_LOCKS, indexes()).unwrap();
            assert!(text.contains("no unique index on key"), "{index}: {text}");
            assert_eq!(problem(&FOR_COUNTED_LOCKS_WITHOUT_INDEX, indexes()), None);
        }
        assert_eq!(problem(&FOR_COUNTED_LOCKS, None), None, "not seen");
        let text = problem(&FOR_COUNTED_LOCKS, Some(Vec::new()));
        assert!(text.is_some(), "there is no collection yet");
    }

    /// Those in `docs/protocol-documents.md`, but for the fields of a holder and those of the search engines alone.
    #[test]
    fn every_field_of_ours_is_known() {
        let page = include_str!("../../../docs/protocol-documents.md");
        let documents = page.split("## The document of a lock").nth(1).unwrap();
        let documents = documents.split("## Schema versions").next().unwrap();
        let mut known = 0;
        for row in documents.lines().filter(|line| line.starts_with("| `")) {
            let mut cells = row.split('|').map(str::trim).skip(1);
            let (names, mongodb) = (cells.next().unwrap(), cells.next().unwrap());
            if ["none", "in the `_id`"].contains(&mongodb) {
                continue;
            }
            for name in names.split(", ") {
                let name = name.trim_matches('`');
                assert!(OURS.contains(&name), "{name}");
                known += 1;
            }
        }
        // The key is in `_id`, and is named so for limiters only.
        assert_eq!(known, OURS.len());
    }
}
