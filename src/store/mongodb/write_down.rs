//! A value of the application as the document that the driver would send.
//!
//! The two majors of `bson` that an application may choose for the driver have the same function under
//! two names, and neither has the other's. The function that both have writes some values, such as UUIDs,
//! otherwise than the driver does. So both names are asked for, in a scope of their own where those of
//! `bson` come first, and one of them is ours and says that it is not there.

use std::error::Error as StdError;

use mongodb::bson::{Document, RawDocumentBuf};
use serde::Serialize;

use crate::{Cause, Error};

/// The value as a document.
///
/// # Errors
///
/// [`Error::Store`] if it cannot be one.
pub(crate) fn document<T: Serialize>(value: &T) -> Result<Document, Error> {
    let raw = by_the_one_name(value).or_else(|| by_the_other(value));
    let written = match raw {
        Some(raw) => raw.and_then(|raw| Document::try_from(raw).map_err(Cause::from)),
        None => Err(Cause::text("this version of bson is not known")),
    };
    written.map_err(|source| Error::Store {
        store: "MongoDB",
        source,
    })
}

fn by_the_one_name<T: Serialize>(value: &T) -> Option<Result<RawDocumentBuf, Cause>> {
    #[allow(unused_imports)]
    use mongodb::bson::*;
    serialize_to_raw_document_buf(value).told()
}

fn by_the_other<T: Serialize>(value: &T) -> Option<Result<RawDocumentBuf, Cause>> {
    #[allow(unused_imports)]
    use mongodb::bson::*;
    to_raw_document_buf(value).told()
}

/// This version has no function of that name.
struct Absent;

#[allow(dead_code)]
fn serialize_to_raw_document_buf<T>(_: &T) -> Absent {
    Absent
}

#[allow(dead_code)]
fn to_raw_document_buf<T>(_: &T) -> Absent {
    Absent
}

trait Told {
    fn told(self) -> Option<Result<RawDocumentBuf, Cause>>;
}

impl Told for Absent {
    fn told(self) -> Option<Result<RawDocumentBuf, Cause>> {
        None
    }
}

impl<E: StdError + Send + Sync + 'static> Told for Result<RawDocumentBuf, E> {
    fn told(self) -> Option<Result<RawDocumentBuf, Cause>> {
        Some(self.map_err(Cause::from))
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, doc};

    use super::*;

    #[test]
    fn a_value_is_written_as_the_driver_does() {
        #[derive(Serialize)]
        struct Order {
            _id: i32,
            token: uuid::Uuid,
        }
        let token = uuid::Uuid::nil();
        let written = document(&Order { _id: 1, token }).unwrap();
        assert_eq!(written.get("_id"), Some(&Bson::Int32(1)));
        // Not as the text that a person would read.
        assert!(matches!(written.get("token"), Some(Bson::Binary(_))));
        assert_eq!(
            document(&doc! { "a": [1, "$b"] }).unwrap(),
            doc! { "a": [1, "$b"] }
        );
    }

    #[test]
    fn what_is_no_document_is_refused() {
        assert!(matches!(document(&5), Err(Error::Store { .. })));
    }
}
