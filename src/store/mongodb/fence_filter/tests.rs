//! Tests of guards and stamps, without a server.

use super::*;

const SEVEN: Fence = Fence::new(7);

fn stamped(update: Document) -> Document {
    match SEVEN.stamp(update) {
        UpdateModifications::Document(update) => update,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_guard_leaves_the_filter_as_it_is() {
    let filters = [
        doc! {},
        doc! { "_id": 1 },
        doc! { "$or": [{ "a": 1 }, { "b": 2 }] },
        doc! { "leasehold_fence": 99, "$and": [] },
    ];
    for filter in filters {
        let not_newer = doc! { "leasehold_fence": { "$not": { "$gt": 7_i64 } } };
        let guarded = doc! { "$and": [filter.clone(), not_newer] };
        assert_eq!(SEVEN.guard(filter.clone()), guarded);
        let newer = doc! { "leasehold_fence": { "$gt": 7_i64 } };
        let overtaken = doc! { "$and": [filter.clone(), newer] };
        assert_eq!(SEVEN.overtaken(filter), overtaken);
    }
}

#[test]
fn an_update_gets_the_fence_beside_its_own_changes() {
    let fence = doc! { "leasehold_fence": 7_i64 };
    assert_eq!(stamped(doc! {}), doc! { "$set": fence.clone() });
    assert_eq!(
        stamped(doc! { "$inc": { "n": 1 } }),
        doc! { "$inc": { "n": 1 }, "$set": fence },
    );
    assert_eq!(
        stamped(doc! { "$set": { "a": 1 }, "$unset": { "b": "" } }),
        doc! { "$set": { "a": 1, "leasehold_fence": 7_i64 }, "$unset": { "b": "" } },
    );
}

#[test]
fn an_update_cannot_weaken_the_fence() {
    let fence = doc! { "$set": { "leasehold_fence": 7_i64 } };
    for operator in ["$set", "$unset", "$min", "$setOnInsert", "$rename", "$inc"] {
        for field in ["leasehold_fence", "leasehold_fence.part"] {
            let update = doc! { operator: { field: 1 } };
            assert_eq!(stamped(update), fence, "{operator} {field}");
            let update = doc! { operator: { field: 1, "other": 1 } };
            let kept = stamped(update);
            let changed = kept.get_document(operator).unwrap();
            assert_eq!(changed.get("other"), Some(&Bson::Int32(1)));
            let set = kept.get_document("$set").unwrap();
            assert_eq!(set.get("leasehold_fence"), Some(&Bson::Int64(7)));
            assert!(!format!("{kept}").contains("part"), "{kept}");
        }
    }
    // A field whose name only begins like that of the fence is another field.
    let other = doc! { "$inc": { "leasehold_fences": 1 } };
    assert!(stamped(other).contains_key("$inc"));
}

#[test]
fn what_is_no_update_stays_none() {
    // The driver refuses the first of these, and the server the others.
    let replacement = stamped(doc! { "a": 1 });
    assert_eq!(replacement.keys().next().unwrap(), "a");
    assert_eq!(stamped(doc! { "$set": 5 }), doc! { "$set": 5 });
    let empty = stamped(doc! { "$inc": {} });
    assert_eq!(empty.get("$inc"), Some(&Bson::Document(doc! {})));
}

#[test]
fn in_a_pipeline_the_fence_comes_last() {
    let last = doc! { "$set": { "leasehold_fence": 7_i64 } };
    let weakening = doc! { "$replaceWith": { "_id": "$_id", "leasehold_fence": 1 } };
    for stages in [vec![], vec![weakening]] {
        let UpdateModifications::Pipeline(stamped) = SEVEN.stamp(stages.clone()) else {
            panic!("it is a pipeline");
        };
        assert_eq!(stamped.split_last(), Some((&last, &*stages)));
    }
}

#[test]
fn a_document_has_the_fence_of_its_writer() {
    let document = doc! { "_id": 1, "leasehold_fence": 99 };
    assert_eq!(
        SEVEN.stamp_document(document),
        doc! { "_id": 1, "leasehold_fence": 7_i64 }
    );
}
