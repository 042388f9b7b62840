//! The name of a lock.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

/// The name of a lock: 1 to 512 bytes of any UTF-8 text.
///
/// `$`, `.`, `/`, blanks and line breaks have no special meaning in any store. Cloning is cheap.
///
/// ```
/// use leasehold::Key;
///
/// assert_eq!(Key::new("report:42")?.as_str(), "report:42");
/// assert!(Key::new("").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Key(pub(super) Arc<str>);

// `Key::new` is in `validation.rs`, because the errors that it returns contain keys.
impl Key {
    /// The text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
