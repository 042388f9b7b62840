//! Whether a collection is fit for locks, by its description and its indexes. Pure functions.

use mongodb::{
    IndexModel,
    bson::{Bson, Document},
    options::IndexOptions,
};

/// The fields of locks and limiters.
const OURS: [&str; 24] = [
    "_id",
    "schema",
    "fence",
    "lease",
    "owner",
    "acquired_at",
    "expires_at",
    "note",
    "idle_since",
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
const DATES: [&str; 13] = [
    "acquired_at",
    "expires_at",
    "idle_since",
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
pub(super) fn unfit(collection: &Document) -> Option<&'static str> {
    let options = collection.get_document("options");
    let has = |option: &str| options.as_ref().is_ok_and(|it| it.contains_key(option));
    match collection.get_str("type") {
        Ok("view") => return Some("it is a view: give the locks a collection of their own"),
        Ok("timeseries") => {
            return Some("it is a time series: give the locks a collection of their own");
        }
        _ => {}
    }
    let is_capped = options
        .as_ref()
        .is_ok_and(|it| it.get_bool("capped").unwrap_or(false));
    if is_capped {
        Some(
            "it is capped, so the server may remove a lock that somebody has: give the locks a collection of their own",
        )
    } else if has("collation") {
        Some(
            "it has a collation, which may take two keys for one: give the locks a collection of their own",
        )
    } else {
        None
    }
}

/// The name of a unique index that refuses locks, or limiters.
pub(super) fn refuses_locks(index: &IndexModel) -> Option<String> {
    let options = index.options.as_ref()?;
    let refuses = options.unique == Some(true)
        && !index.keys.contains_key("_id")
        && !excludes_store_documents(&index.keys, options);
    refuses.then(|| options.name.clone().unwrap_or_default())
}

/// Whether none of our documents is in an index: it is sparse, and they have none of its fields, or its filter is for
/// a field that they have not. Other filters are not evaluated.
fn excludes_store_documents(keys: &Document, options: &IndexOptions) -> bool {
    if options.sparse == Some(true) && keys.keys().all(|field| is_foreign(field)) {
        return true;
    }
    let filter = options.partial_filter_expression.iter().flatten();
    filter
        .into_iter()
        .any(|(field, condition)| is_foreign(field) && requires(condition))
}

/// Whether a field, by its path, is in none of our documents.
fn is_foreign(path: &str) -> bool {
    let field = path.split('.').next().unwrap_or_default();
    // `$and` and the like hold further conditions.
    !field.starts_with('$') && !OURS.contains(&field) && !OURS_OF_CLASSIC.contains(&field)
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

/// Whether an index removes locks or limiters by a date that is not for their removal.
pub(super) fn removes_too_early(index: &IndexModel) -> bool {
    let is_date_of_ours = |path: &String| {
        let field = path.split('.').next().unwrap_or_default();
        DATES.contains(&field)
    };
    index.options.as_ref().is_some_and(|options| {
        options.expire_after.is_some()
            && index.keys.keys().any(is_date_of_ours)
            && !excludes_store_documents(&index.keys, options)
    })
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    fn unique(keys: Document, more: impl FnOnce(&mut IndexOptions)) -> IndexModel {
        let mut options = IndexOptions::builder().unique(true).build();
        options.name = Some("theirs".to_owned());
        more(&mut options);
        IndexModel::builder().keys(keys).options(options).build()
    }

    #[test]
    fn a_unique_index_is_refused_unless_it_leaves_locks_out() {
        let sparse = |keys| unique(keys, |it| it.sparse = Some(true));
        let partial = |filter| {
            unique(doc! { "owner": 1 }, |it| {
                it.partial_filter_expression = Some(filter);
            })
        };
        let harmless = [
            sparse(doc! { "email": 1 }),
            sparse(doc! { "email": 1, "address.city": -1 }),
            partial(doc! { "email": { "$exists": true } }),
            partial(doc! { "email": { "$type": "string" } }),
            partial(doc! { "fence": { "$gt": 5 }, "kind": "person" }),
            unique(doc! { "email": 1, "_id": 1 }, |_| {}),
            unique(doc! { "email": 1 }, |it| it.unique = None),
        ];
        for index in harmless {
            assert_eq!(refuses_locks(&index), None, "{index:?}");
        }
        let harmful = [
            unique(doc! { "email": 1 }, |_| {}),
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
            assert_eq!(
                refuses_locks(&index).as_deref(),
                Some("theirs"),
                "{index:?}"
            );
        }
    }

    /// Those that `docs/protocol.md` has, but for the fields of a holder and those of the search engines alone.
    #[test]
    fn every_field_of_ours_is_known() {
        let page = include_str!("../../../docs/protocol.md");
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
