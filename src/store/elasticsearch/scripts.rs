//! The scripts that the shards run, and their names.

use std::sync::OnceLock;

/// A script of this crate, with the name of its file. A script about locks begins with functions from other files:
/// `lock.painless`; `holders.painless` if it handles several holders; `place.painless` and `places.painless` if it
/// handles waiting processes; `done.painless` if it handles done ticks.
pub(crate) struct Script {
    name: &'static str,
    /// The functions that it uses.
    functions: &'static [&'static Functions],
    written: &'static str,
    sent: OnceLock<Sent>,
}

/// Functions that several scripts use, with the name of their file.
pub(super) struct Functions {
    #[cfg(test)]
    name: &'static str,
    written: &'static str,
}

struct Sent {
    source: String,
    stored_name: String,
}

impl Script {
    const fn new(
        name: &'static str,
        functions: &'static [&'static Functions],
        written: &'static str,
    ) -> Self {
        Self {
            name,
            functions,
            written,
            sent: OnceLock::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The files that it is made of, with their names, in their order.
    #[cfg(test)]
    pub(super) fn files(&self) -> Vec<(&'static str, &'static str)> {
        let functions = self.functions.iter().map(|it| (it.name, it.written));
        functions.chain([(self.name, self.written)]).collect()
    }

    /// The script as it is sent: without comments and indents, because it is part of each request.
    pub(crate) fn source(&self) -> &str {
        &self.sent().source
    }

    /// The name under which the script is stored. A hash of the source is part of it (FNV-1a, 64 bits), so that two
    /// versions of this crate can use one cluster, each with its own scripts.
    pub(crate) fn stored_name(&self) -> &str {
        &self.sent().stored_name
    }

    fn sent(&self) -> &Sent {
        self.sent.get_or_init(|| {
            let functions = self.functions.iter().map(|it| &it.written);
            let parts = functions.chain([&self.written]);
            let parts: Vec<_> = parts.map(|part| without_comments(part)).collect();
            let source = parts.join("\n");
            let hash = source
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
                });
            let stored_name = format!("leasehold-{}-{hash:016x}", self.name);
            Sent {
                source,
                stored_name,
            }
        })
    }
}

/// The script without indents, and without the lines that are comments.
fn without_comments(script: &str) -> String {
    let lines = script.lines().map(str::trim);
    let code: Vec<_> = lines.filter(|line| !line.starts_with("//")).collect();
    code.join("\n")
}

macro_rules! functions {
    ($file:literal) => {
        Functions {
            #[cfg(test)]
            name: $file,
            written: include_str!(concat!($file, ".painless")),
        }
    };
}

/// Functions about the document of a lock.
static LOCK: Functions = functions!("lock");
/// Functions about several holders.
static HOLDERS: Functions = functions!("holders");
/// Functions about the place of a process that waits.
static PLACE: Functions = functions!("place");
/// Functions about all places.
static PLACES: Functions = functions!("places");

/// Functions about the done tick.
static DONE: Functions = functions!("done");

macro_rules! scripts {
    ($($constant:ident = [$($functions:ident),*] $file:literal;)*) => {
        $(pub(crate) static $constant: Script =
            Script::new($file, &[$(&$functions),*], include_str!(concat!($file, ".painless")));)*
        /// All scripts, for `prepare` to store them.
        pub(crate) static SCRIPTS: &[&Script] = &[$(&$constant),*];
    };
}

scripts! {
    ACQUIRE = [LOCK, PLACE] "acquire";
    ACQUIRE_IN_FULL = [LOCK, HOLDERS, PLACE, PLACES, DONE] "acquire_in_full";
    LEAVE = [LOCK, HOLDERS, PLACE, PLACES] "leave";
    RENEW = [LOCK, HOLDERS] "renew";
    CONVERT = [LOCK, HOLDERS] "convert";
    RELEASE = [LOCK, HOLDERS] "release";
    RELEASE_DONE = [LOCK, HOLDERS, DONE] "release_done";
    EVICT = [LOCK, HOLDERS] "evict";
    INSPECT = [] "inspect";
    REMOVE_EXPIRED = [LOCK, DONE] "remove_expired";
    PURGE = [LOCK, DONE] "purge";
    PERMIT = [] "permit";
    NOW = [] "now";
    GUARDED_CLAIM = [] "guarded_claim";
    GUARDED_INDEX = [] "guarded_index";
    GUARDED_UPDATE = [] "guarded_update";
    GUARDED_DELETE = [] "guarded_delete";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_script_is_stored_under_a_name_of_its_own() {
        let names: BTreeSet<_> = SCRIPTS.iter().map(|it| it.stored_name()).collect();
        assert_eq!(names.len(), SCRIPTS.len());
    }

    /// Only lines that begin with `//` are left out. A comment after code, or a block comment, would be sent.
    #[test]
    fn comments_have_lines_of_their_own() {
        for script in SCRIPTS {
            assert!(!script.source().contains("//"), "{}", script.name);
            assert!(!script.written.contains("/*"), "{}", script.name);
        }
    }
}
