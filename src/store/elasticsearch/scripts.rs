//! The scripts that the shards run, and their names.

use std::sync::LazyLock;

/// A file of a script: its name, and what is written in it.
type File = (&'static str, &'static str);

/// A script of this crate. A script about locks begins with functions from other files: `lock.painless`;
/// `holders.painless` if it handles several holders; `place.painless` and `places.painless` if it handles waiting
/// processes; `done.painless` if it handles done ticks. A script that changes a limiter begins with
/// those of `limiter.painless`.
pub(crate) struct Script {
    #[cfg(test)]
    pub(super) name: &'static str,
    /// The files that it is made of, in their order.
    #[cfg(test)]
    pub(super) files: &'static [File],
    /// The script as it is sent: without comments and indents, because it is part of each request.
    pub(crate) source: String,
    /// The name under which the script is stored. A hash of the source is part of it (FNV-1a, 64 bits), so that two
    /// versions of this crate can use one cluster, each with its own scripts.
    pub(crate) stored_name: String,
}

impl Script {
    fn new(name: &'static str, files: &'static [File]) -> Self {
        let parts: Vec<_> = files.iter().map(|(_, it)| without_comments(it)).collect();
        let source = parts.join("\n");
        let hash = source
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        Self {
            #[cfg(test)]
            name,
            #[cfg(test)]
            files,
            source,
            stored_name: format!("leasehold-{name}-{hash:016x}"),
        }
    }
}

/// The script without indents, and without the lines that are comments.
fn without_comments(script: &str) -> String {
    let lines = script.lines().map(str::trim);
    let code: Vec<_> = lines.filter(|line| !line.starts_with("//")).collect();
    code.join("\n")
}

macro_rules! painless {
    ($name:literal) => {
        ($name, include_str!(concat!($name, ".painless")))
    };
}

/// Functions about the document of a lock.
const LOCK: File = painless!("lock");
/// Functions about several holders.
const HOLDERS: File = painless!("holders");
/// Functions about the place of a process that waits.
const PLACE: File = painless!("place");
/// Functions about all places.
const PLACES: File = painless!("places");
/// Functions about the done tick.
const DONE: File = painless!("done");
/// Functions about the document of a limiter.
const LIMITER: File = painless!("limiter");

macro_rules! scripts {
    ($($constant:ident = [$($functions:ident),*] $name:literal;)*) => {
        $(pub(crate) static $constant: LazyLock<Script> =
            LazyLock::new(|| Script::new($name, &[$($functions,)* painless!($name)]));)*
        /// All scripts, for `prepare` to store them.
        pub(crate) static SCRIPTS: &[&LazyLock<Script>] = &[$(&$constant),*];
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
    PERMIT = [LIMITER] "permit";
    GIVE_BACK = [LIMITER] "give_back";
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
        let names: BTreeSet<_> = SCRIPTS.iter().map(|it| &*it.stored_name).collect();
        assert_eq!(names.len(), SCRIPTS.len());
    }

    /// Only lines that begin with `//` are left out. A comment after code, or a block comment, would be sent.
    #[test]
    fn comments_have_lines_of_their_own() {
        for script in SCRIPTS {
            assert!(!script.source.contains("//"), "{}", script.name);
            assert!(!script.source.contains("/*"), "{}", script.name);
        }
    }
}
