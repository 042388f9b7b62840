//! `Access` and `Conversion`: what a lease asks of its key, and a change of its mode.

use super::{error::Error, mode::Mode};

/// What a lease asks of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The lease has the key for itself, without other holders.
    Exclusive,
    /// The lease shares the key with other shared leases.
    Shared,
    /// The lease takes some of the permits of the key, beside other leases with permits.
    Permits(Permits),
}

/// Some of the permits of a key: at least one, and at most as many as the key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permits {
    n: i64,
    of: i64,
}

impl Permits {
    /// `n` of the `of` permits of a key.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidPermits`] unless `n` is between 1 and `of`.
    pub fn new(n: i64, of: i64) -> Result<Self, Error> {
        if (1..=of).contains(&n) {
            Ok(Self { n, of })
        } else {
            Err(Error::InvalidPermits {
                permits: n,
                capacity: of,
            })
        }
    }

    /// How many permits the lease takes.
    pub fn n(self) -> i64 {
        self.n
    }

    /// How many permits the key has.
    pub fn of(self) -> i64 {
        self.of
    }
}

impl Access {
    /// The mode of a lease with this access.
    pub fn mode(self) -> Mode {
        match self {
            Self::Exclusive => Mode::Exclusive,
            Self::Shared => Mode::Shared,
            Self::Permits(_) => Mode::Permits,
        }
    }

    /// How many permits the lease takes; 1 unless this is [`Access::Permits`].
    pub fn permits(self) -> i64 {
        match self {
            Self::Permits(permits) => permits.n,
            Self::Exclusive | Self::Shared => 1,
        }
    }

    /// How many permits the key has; 1 unless this is [`Access::Permits`].
    pub fn capacity(self) -> i64 {
        match self {
            Self::Permits(permits) => permits.of,
            Self::Exclusive | Self::Shared => 1,
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

    /// The conversion that undoes this one.
    pub(crate) fn opposite(self) -> Self {
        match self {
            Self::Upgrade => Self::Downgrade,
            Self::Downgrade => Self::Upgrade,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_permits_below_one_or_above_what_the_key_has() {
        for (n, of) in [(1, 1), (1, 4), (4, 4), (i64::MAX, i64::MAX)] {
            let permits = Permits::new(n, of).unwrap();
            assert_eq!((permits.n(), permits.of()), (n, of));
        }
        for (n, of) in [
            (0, 4),
            (5, 4),
            (-1, 4),
            (1, 0),
            (0, 0),
            (i64::MIN, i64::MAX),
        ] {
            let refused = Permits::new(n, of);
            assert!(
                matches!(refused, Err(Error::InvalidPermits { permits, capacity })
                    if (permits, capacity) == (n, of))
            );
        }
    }
}
