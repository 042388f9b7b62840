//! `Mode`: which holders may stand beside a holder.

use serde::{Deserialize, Serialize};

/// Which holders may stand beside a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mode {
    /// No other holder.
    Exclusive,
    /// Other shared holders.
    Shared,
    /// Other holders of permits, up to a capacity.
    Permits,
}

impl Mode {
    /// The word for the mode in a document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permits => "permits",
        }
    }

    /// Parses the word for a mode in a document; `None` if this version does not know it.
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
