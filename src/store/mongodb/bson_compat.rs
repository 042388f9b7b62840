//! Converts a value of the application to the document that the driver would send, and back.
//!
//! This module exists for compatibility and not for speed: the crate must compile with both major versions of `bson`
//! that an application may choose for the driver.
//!
//! The two versions have the same functions under different names. The one function that has the same name in both
//! writes some values, such as UUIDs, differently from the driver. So this module calls both names, each in a scope
//! where the names of `bson` hide those of this module. Where `bson` lacks a name, the function of this module is
//! called, which returns [`Absent`].

use std::error::Error as StdError;

use mongodb::bson::{Document, RawDocumentBuf};
use serde::{Serialize, de::DeserializeOwned};

use super::error::STORE;
use crate::model::{Cause, Error};

/// Calls the function of version 3 of `bson`, or that of version 2, with the same argument.
macro_rules! either {
    ($of_version_3:ident, $of_version_2:ident, $argument:expr) => {{
        #[allow(unused_imports)]
        use mongodb::bson::*;
        let outcome = $of_version_3($argument).if_present();
        let outcome = outcome.or_else(|| $of_version_2($argument).if_present());
        outcome.unwrap_or_else(|| Err(Cause::text("this version of bson is not known")))
    }};
}

/// The value as a document.
///
/// # Errors
///
/// [`Error::Store`] if it cannot be a document.
pub(crate) fn document<T: Serialize>(value: &T) -> Result<Document, Error> {
    let raw = either!(serialize_to_raw_document_buf, to_raw_document_buf, value);
    raw.and_then(|raw| Document::try_from(raw).map_err(Cause::from))
        .map_err(failed)
}

/// The document as a value.
///
/// # Errors
///
/// [`Error::Store`] if it is not a value of this type.
pub(crate) fn value<T: DeserializeOwned>(document: &RawDocumentBuf) -> Result<T, Error> {
    let bytes = document.as_bytes();
    either!(deserialize_from_slice, from_slice, bytes).map_err(failed)
}

fn failed(source: Cause) -> Error {
    let store = STORE;
    Error::Store { store, source }
}

/// The result of a function that this version of `bson` lacks.
struct Absent;

#[allow(dead_code)]
fn serialize_to_raw_document_buf<T>(_: &T) -> Absent {
    Absent
}

#[allow(dead_code)]
fn to_raw_document_buf<T>(_: &T) -> Absent {
    Absent
}

#[allow(dead_code)]
fn deserialize_from_slice(_: &[u8]) -> Absent {
    Absent
}

#[allow(dead_code)]
fn from_slice(_: &[u8]) -> Absent {
    Absent
}

/// The result of a function that may be absent; `None` if it is.
trait IfPresent<T> {
    fn if_present(self) -> Option<Result<T, Cause>>;
}

impl<T> IfPresent<T> for Absent {
    fn if_present(self) -> Option<Result<T, Cause>> {
        None
    }
}

impl<T, E: StdError + Send + Sync + 'static> IfPresent<T> for Result<T, E> {
    fn if_present(self) -> Option<Result<T, Cause>> {
        Some(self.map_err(Cause::from))
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, doc};
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize, Serialize)]
    struct Order {
        _id: i32,
        token: uuid::Uuid,
    }

    fn raw(document: &Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(document).unwrap()
    }

    #[test]
    fn a_value_is_written_and_read_as_the_driver_does() {
        let token = uuid::Uuid::nil();
        let order = Order { _id: 1, token };
        let written = document(&order).unwrap();
        assert_eq!(value::<Order>(&raw(&written)).unwrap(), order);
        assert_eq!(written.get("_id"), Some(&Bson::Int32(1)));
        // The value is not written as the text that a person would read.
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

    #[test]
    fn what_is_not_of_the_type_is_refused() {
        let error = value::<Order>(&raw(&doc! { "_id": "text" })).unwrap_err();
        assert!(matches!(error, Error::Store { .. }), "{error:?}");
        assert!(!error.is_retryable() && !error.is_ambiguous());
    }
}
