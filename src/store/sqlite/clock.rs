//! The time that all processes of a host agree on, and that never goes back.

/// The clocks of this host.
pub(super) struct Reading<'a> {
    /// The name of the boot, and the milliseconds since, if the host counts them.
    pub(super) boot: Option<(&'a str, i64)>,
    /// The time of day, in milliseconds since 1970, which may be set.
    pub(super) of_day: i64,
}

/// The time as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The boot that it is about; empty without one.
    pub(super) boot: String,
    /// What the time was at that boot, in milliseconds since 1970.
    pub(super) base: i64,
    /// The greatest time that anything was written at.
    pub(super) last: i64,
}

impl Kept {
    /// The time as the file is to have it from now on; its `last` is the time now.
    ///
    /// The time of day counts once a boot, so that a change of it moves no expiry.
    pub(super) fn at(before: Option<&Self>, reading: &Reading<'_>) -> Self {
        let last = before.map_or(i64::MIN, |before| before.last);
        let Some((boot, since)) = reading.boot else {
            return Self {
                boot: String::new(),
                base: 0,
                last: last.max(reading.of_day),
            };
        };
        let base = match before {
            Some(before) if before.boot == boot => before.base,
            _ => last.max(reading.of_day).saturating_sub(since),
        };
        Self {
            boot: boot.to_owned(),
            base,
            last: last.max(base.saturating_add(since)),
        }
    }
}

/// The name of this boot: Linux makes a new one each time. `None` where there is none to be had.
pub(super) fn boot() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// The milliseconds since the boot, those in suspension too. No process can set that clock.
#[cfg(target_os = "linux")]
pub(super) fn since_boot() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}

/// Nobody asks: without a name of the boot there is no use for it.
#[cfg(not(target_os = "linux"))]
pub(super) fn since_boot() -> i64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(boot: &str, since: i64, of_day: i64) -> Reading<'_> {
        let boot = Some((boot, since));
        Reading { boot, of_day }
    }

    #[test]
    fn the_time_of_day_counts_once_a_boot() {
        let first = Kept::at(None, &reading("a", 1_000, 500_000));
        assert_eq!((first.base, first.last), (499_000, 500_000));
        // Set forward, and back.
        for of_day in [0, 9_000_000] {
            let later = Kept::at(Some(&first), &reading("a", 1_250, of_day));
            assert_eq!((later.base, later.last), (499_000, 500_250));
        }
    }

    #[test]
    fn it_does_not_go_back_over_a_boot() {
        let before = Kept::at(None, &reading("a", 1_000, 500_000));
        let after = Kept::at(Some(&before), &reading("b", 10, 501_000));
        assert_eq!(after.last, 501_000);
        // The host has no battery for its clock.
        let after = Kept::at(Some(&before), &reading("b", 10, 0));
        assert_eq!(after.last, 500_000);
        let later = Kept::at(Some(&after), &reading("b", 30, 0));
        assert_eq!(later.last, 500_020);
    }

    /// A machine that goes on from a picture of its memory.
    #[test]
    fn it_stands_still_while_the_count_is_behind() {
        let before = Kept::at(None, &reading("a", 1_000, 500_000));
        let after = Kept::at(Some(&before), &reading("a", 400, 500_700));
        assert_eq!(after.last, 500_000);
        let later = Kept::at(Some(&after), &reading("a", 1_001, 0));
        assert_eq!(later.last, 500_001);
    }

    #[test]
    fn without_a_count_it_is_the_time_of_day_that_never_goes_back() {
        let of_day = |of_day| Reading { boot: None, of_day };
        let first = Kept::at(None, &of_day(500_000));
        assert_eq!(first.last, 500_000);
        assert_eq!(Kept::at(Some(&first), &of_day(400_000)).last, 500_000);
        assert_eq!(Kept::at(Some(&first), &of_day(500_001)).last, 500_001);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_host_counts() {
        assert!(boot().is_some());
        let before = since_boot();
        assert!(before > 0 && since_boot() >= before);
    }
}
