//! `AddressError`: why no store can be opened at an address.

use super::meant::meant;
use crate::model::{Error, quoted};

/// The forms of an address.
const FORMS: &str = "file:PATH; mongodb://HOST[:PORT][/DATABASE[.COLLECTION]], \
     with classic+ before it for an engine without pipelines; \
     es+http://HOST:PORT[,HOST:PORT][/PREFIX][/ALIAS], also es+https and opensearch+https";

/// Why no store can be opened at an address.
///
/// No error repeats an address with a user or with options, because it may contain a password: hosts are named, and
/// users, passwords and keys are not.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text is no valid address. Nothing was sent.
    #[error("{0}")]
    Invalid(String),

    /// The address is of a store, or has a scheme, for which a feature of this crate is switched off. Nothing was sent.
    #[error(
        "this address needs the feature {feature} of the crate leasehold: switch it on in Cargo.toml, and build again"
    )]
    MissingFeature {
        /// The name of the feature; two names if either is enough.
        feature: &'static str,
    },

    /// No server answers there, or one of another kind. A retry can help.
    #[error("{0}")]
    Unreachable(String),

    /// The server refused the credentials.
    #[error("{0}")]
    Denied(String),

    /// The store cannot be used, for example because its file is of another program.
    #[error("{place}: {error}")]
    Store {
        /// Where the store is.
        place: String,
        /// What is wrong.
        error: Error,
    },
}

/// The error for a text that begins like no address.
pub(super) fn unknown(text: &str) -> AddressError {
    AddressError::Invalid(match meant(text) {
        Some(address) => {
            let text = quoted(text);
            format!("{text} is not the address of a store: did you mean {address}?")
        }
        None => format!("the address of a store is one of {FORMS}"),
    })
}

/// The error for a feature that is switched off.
#[allow(dead_code, reason = "with all features none is missing")]
pub(super) fn missing(feature: &'static str) -> AddressError {
    AddressError::MissingFeature { feature }
}

/// The error for an address of this kind that does not have its form.
#[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
pub(super) fn invalid(kind: &str, form: &str) -> AddressError {
    AddressError::Invalid(format!(
        "this is not a valid {kind} address: write it like {form}, with special characters of the \
         password percent-encoded"
    ))
}
