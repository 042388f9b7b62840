//! Where all randomness of this library comes from: ids, and the jitter of pauses. It is that of the operating system,
//! unless a test has given its thread a seed.

use uuid::Uuid;

/// A new, random UUID (version 4).
pub(crate) fn uuid() -> Uuid {
    #[cfg(feature = "testing")]
    if let Some(bits) = seeded::draw(|random| random.u128(..)) {
        return uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
    }
    Uuid::new_v4()
}

/// A random number from 0 to 1, without 1.
pub(crate) fn fraction() -> f64 {
    #[cfg(feature = "testing")]
    if let Some(fraction) = seeded::draw(fastrand::Rng::f64) {
        return fraction;
    }
    fastrand::f64()
}

/// A random number.
pub(crate) fn number() -> u32 {
    #[cfg(feature = "testing")]
    if let Some(number) = seeded::draw(|random| random.u32(..)) {
        return number;
    }
    fastrand::u32(..)
}

/// The randomness of a thread that has a seed.
#[cfg(feature = "testing")]
pub(crate) mod seeded {
    use std::cell::RefCell;

    use fastrand::Rng;

    thread_local! {
        static SEEDED: RefCell<Option<Rng>> = const { RefCell::new(None) };
    }

    /// From now on everything random on this thread follows from the seed.
    pub(crate) fn begin(seed: u64) {
        SEEDED.set(Some(Rng::with_seed(seed)));
    }

    /// Whether this thread has a seed.
    pub(crate) fn is_on() -> bool {
        SEEDED.try_with(|seeded| seeded.borrow().is_some()) == Ok(true)
    }

    /// Takes something random. `None` if the thread has no seed.
    pub(super) fn draw<T>(draw: impl FnOnce(&mut Rng) -> T) -> Option<T> {
        // A guard that is dropped while the thread ends may come here when the value is gone.
        let seeded = SEEDED.try_with(|seeded| seeded.borrow_mut().as_mut().map(draw));
        seeded.ok().flatten()
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_what_comes_and_only_on_its_thread() {
        let drawn = || (uuid(), fraction(), number());
        let seeded = |seed| {
            let draws = std::thread::spawn(move || {
                seeded::begin(seed);
                drawn()
            });
            draws.join().unwrap()
        };
        assert_eq!(seeded(1), seeded(1));
        assert_ne!(seeded(1).0, seeded(2).0);
        assert_ne!(drawn().0, drawn().0);
        assert_eq!(seeded(1).0.get_version_num(), 4);
    }
}
