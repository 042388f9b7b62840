//! `LeaseId` and `PermitId`: the ids of single grants.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::random;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// The id that stands for a missing one in a document.
            #[allow(dead_code, reason = "the store in memory has no documents")]
            pub(crate) const NONE: Self = Self(Uuid::nil());

            /// Makes a new, random id (UUID version 4).
            pub fn random() -> Self {
                Self(random::uuid())
            }

            /// Parses a UUID in lower case with hyphens, as [`Display`](fmt::Display) writes it. `None` for any other
            /// form, because stores search their documents for this text.
            pub fn parse(text: &str) -> Option<Self> {
                let id = Self(Uuid::try_parse(text).ok()?);
                (id.to_string() == text).then_some(id)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0.as_hyphenated(), f)
            }
        }
    };
}

name! {
    /// The id of one lease.
    ///
    /// The client makes it before it sends the request, and keeps it in the retries. So the store recognises a repeated
    /// request, and a release frees no lease but its own. A process that waits for the key has a [place](crate::Place)
    /// under the id of the lease that it asks for.
    LeaseId
}

name! {
    /// The id of one grant of a limiter.
    ///
    /// The client makes it before it sends the request, and keeps it in the retries. So the store recognises a repeated
    /// request.
    PermitId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_what_it_writes() {
        let id = LeaseId::random();
        assert_eq!(LeaseId::parse(&id.to_string()), Some(id));
        assert_eq!(LeaseId::parse("not a lease"), None);
        assert_eq!(LeaseId::parse(&id.to_string().to_uppercase()), None);
        assert_eq!(LeaseId::parse(&id.0.simple().to_string()), None);
    }
}
