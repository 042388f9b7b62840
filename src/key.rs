//! The name of a lock.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::Error;

/// The longest key, in bytes of UTF-8. Elasticsearch refuses a longer `_id`, and every store keeps
/// to the same bound so that a key which works on one works on all.
pub const MAX_KEY_BYTES: usize = 512;

/// The longest name of an owner, in bytes of UTF-8: it is looked for as a whole, and shown to people.
pub const MAX_OWNER_BYTES: usize = 512;

/// The longest remark of a holder, in bytes of UTF-8: a line for people, which goes along with every
/// answer.
pub const MAX_NOTE_BYTES: usize = 1_024;

/// The most live holders of one key: its shared leases, or those with permits.
///
/// All of them stand in one document, which each grant, renewal and release writes anew and each answer
/// shows. A holder with the longest owner and note has some 1.7 KB, so that many stay far below the
/// 16 MB that MongoDB takes, and the server is not kept busy with one key.
pub const MAX_HOLDERS: usize = 1_000;

/// The name of a lock: 1 to 512 bytes of any UTF-8 text.
///
/// Text is text: `$`, `.`, `/`, blanks and line breaks have no meaning in any store. Cloning is
/// cheap.
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
pub struct Key(Arc<str>);

impl Key {
    /// Checks and wraps a key.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] if the text is empty or longer than [`MAX_KEY_BYTES`].
    pub fn new(text: impl AsRef<str>) -> Result<Self, Error> {
        let text = text.as_ref();
        if text.is_empty() || text.len() > MAX_KEY_BYTES {
            return Err(Error::InvalidKey { bytes: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// The text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::new(text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_in_bytes() {
        assert!(Key::new("x").is_ok());
        assert!(Key::new("x".repeat(512)).is_ok());
        assert!(Key::new("é".repeat(256)).is_ok());
        assert!(matches!(Key::new(""), Err(Error::InvalidKey { bytes: 0 })));
        assert!(matches!(
            Key::new("é".repeat(257)),
            Err(Error::InvalidKey { bytes: 514 })
        ));
    }
}
