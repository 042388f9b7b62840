//! `Access` and `Conversion`: what a lease asks of its key, and a change of its mode.

use super::mode::Mode;

/// What a lease asks of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The lease has the key for itself, without other holders.
    Exclusive,
    /// The lease shares the key with other shared leases.
    Shared,
    /// The lease takes some of the permits of the key, beside other leases with permits.
    Permits {
        /// How many permits the lease takes.
        n: i64,
        /// How many permits the key has.
        of: i64,
    },
}

impl Access {
    /// The mode of a lease with this access.
    pub fn mode(self) -> Mode {
        match self {
            Self::Exclusive => Mode::Exclusive,
            Self::Shared => Mode::Shared,
            Self::Permits { .. } => Mode::Permits,
        }
    }

    /// How many permits the lease takes; 1 unless this is [`Access::Permits`].
    pub fn permits(self) -> i64 {
        match self {
            Self::Permits { n, .. } => n,
            _ => 1,
        }
    }

    /// How many permits the key has; 1 unless this is [`Access::Permits`].
    pub fn capacity(self) -> i64 {
        match self {
            Self::Permits { of, .. } => of,
            _ => 1,
        }
    }
}

/// A change of the mode of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conversion {
    /// From shared to exclusive.
    Upgrade,
    /// From exclusive to shared.
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
