//! The scripts that the shards run, and their names.

/// A script of this crate, by the name that it has among stored scripts.
pub(crate) struct Script {
    name: &'static str,
    pub(crate) source: &'static str,
}

impl Script {
    /// The name among stored scripts. A hash of the source is part of it (FNV-1a, 64 bits), so that
    /// processes of two versions that run side by side never call each other's.
    pub(crate) fn stored_name(&self) -> String {
        let hash = self
            .source
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        format!("leasehold-{}-{hash:016x}", self.name)
    }
}

macro_rules! scripts {
    ($($constant:ident = $file:literal;)*) => {
        $(pub(crate) const $constant: Script = Script {
            name: $file,
            source: include_str!(concat!($file, ".painless")),
        };)*
        /// All of them, for storing them.
        pub(crate) const SCRIPTS: &[Script] = &[$($constant),*];
    };
}

scripts! {
    ACQUIRE = "acquire";
    RENEW = "renew";
    CONVERT = "convert";
    RELEASE = "release";
    EVICT = "evict";
    INSPECT = "inspect";
    REMOVE_EXPIRED = "remove_expired";
    PERMIT = "permit";
    NOW = "now";
    GUARDED_CLAIM = "guarded_claim";
    GUARDED_INDEX = "guarded_index";
    GUARDED_UPDATE = "guarded_update";
    GUARDED_DELETE = "guarded_delete";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_script_is_stored_under_a_name_of_its_own() {
        let names: BTreeSet<_> = SCRIPTS.iter().map(Script::stored_name).collect();
        assert_eq!(names.len(), SCRIPTS.len());
    }
}
