//! `Access` and `Conversion`: the whole key, a part of it, or another mode.

use super::mode::Mode;

/// The part of its key that a lease is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// All of it.
    Exclusive,
    /// A share, beside other shared holders.
    Shared,
    /// Some of its permits, beside other holders of permits.
    Permits {
        /// How many it takes.
        n: i64,
        /// How many there are.
        of: i64,
    },
}

impl Access {
    /// The mode of the lease that it makes.
    pub fn mode(self) -> Mode {
        match self {
            Self::Exclusive => Mode::Exclusive,
            Self::Shared => Mode::Shared,
            Self::Permits { .. } => Mode::Permits,
        }
    }

    /// How many permits it takes; 1 where it is not about permits.
    pub fn permits(self) -> i64 {
        match self {
            Self::Permits { n, .. } => n,
            _ => 1,
        }
    }

    /// How many permits there are; 1 where it is not about permits.
    pub fn capacity(self) -> i64 {
        match self {
            Self::Permits { of, .. } => of,
            _ => 1,
        }
    }
}

/// The mode that a lease is to have from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conversion {
    /// Exclusive, from shared.
    Upgrade,
    /// Shared, from exclusive.
    Downgrade,
}

impl Conversion {
    /// The mode that the lease gets.
    pub fn mode(self) -> Mode {
        match self {
            Self::Upgrade => Mode::Exclusive,
            Self::Downgrade => Mode::Shared,
        }
    }
}
