//! `Mode`: which other holders a holder allows beside it.

use serde::{Deserialize, Serialize};

/// Which other holders a holder allows beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mode {
    /// No other holder.
    Exclusive,
    /// Other shared holders.
    Shared,
    /// Other holders of permits, as long as there are enough permits.
    Permits,
}

impl Mode {
    /// The word for the mode, as documents contain it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permits => "permits",
        }
    }

    /// Reads the word for a mode from a document; `None` if this version does not know the word.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Exclusive, Self::Shared, Self::Permits]
            .into_iter()
            .find(|mode| mode.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_reads_back_what_it_writes() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits] {
            assert_eq!(Mode::parse(mode.as_str()), Some(mode));
        }
        assert_eq!(Mode::parse("EXCLUSIVE"), None);
    }
}
