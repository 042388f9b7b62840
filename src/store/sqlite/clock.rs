//! The clock of a file of locks: the same for all processes of a host, and never set back.

/// How far the clock of another boot id may be from the time of day while it counts as the same boot, in milliseconds.
/// (Containers can show boot ids of their own for one boot.)
const BOOT_TOLERANCE: i64 = 10_000;

/// What the clocks of this host show.
pub(super) struct Reading<'a> {
    /// The id of the boot, and the milliseconds since the boot; `None` if the host does not count them.
    pub(super) boot: Option<(&'a str, i64)>,
    /// The time of day, in milliseconds since 1970. It can be set.
    pub(super) of_day: i64,
    /// The base of the clock of the file when this process last used it. The host has not booted since, because the
    /// process would have ended.
    pub(super) base: Option<i64>,
}

/// The state of the clock, as the file keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The id of the boot to which `base` belongs; empty if the host has none.
    pub(super) boot: String,
    /// The time of that boot, in milliseconds since 1970.
    pub(super) base: i64,
    /// The greatest time at which the file was written.
    pub(super) last: i64,
}

impl Kept {
    /// The next state of the clock. Its `last` is the time now.
    ///
    /// The time of day is read once for each boot, so that setting it later moves no expiry. Containers may show boot
    /// ids of their own for the same boot. So another id alone says nothing: the host has booted if its count is
    /// smaller than before by more than the tolerance, or if what the host has counted is not near the time of day; but
    /// not by the time of day if this process has used the clock as it is.
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
            Some(before) if before.boot == boot || !has_booted(before, since, reading) => {
                before.base
            }
            _ => last.max(reading.of_day).saturating_sub(since),
        };
        Self {
            boot: boot.to_owned(),
            base,
            last: last.max(base.saturating_add(since)),
        }
    }
}

/// Whether the host has booted since the clock was kept under another id.
fn has_booted(before: &Kept, since: i64, reading: &Reading<'_>) -> bool {
    let counted = before.base.saturating_add(since);
    let earliest = reading.of_day.saturating_sub(BOOT_TOLERANCE);
    let latest = before
        .last
        .max(reading.of_day)
        .saturating_add(BOOT_TOLERANCE);
    let is_known = reading.base == Some(before.base);
    // A count that is a little behind is that of another container. The clock then stands still until it has caught up.
    let has_begun_anew = counted < before.last.saturating_sub(BOOT_TOLERANCE);
    has_begun_anew || !is_known && !(earliest..=latest).contains(&counted)
}

/// The id of this boot, which Linux makes anew at each boot. `None` on other systems, or if it cannot be read.
pub(super) fn boot() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// The milliseconds since the boot, including suspensions. No process can set this clock.
#[cfg(target_os = "linux")]
pub(super) fn since_boot() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}

/// Never called: without a boot id there is no use for it.
#[cfg(not(target_os = "linux"))]
pub(super) fn since_boot() -> i64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(boot: &str, since: i64, of_day: i64) -> Reading<'_> {
        Reading {
            boot: Some((boot, since)),
            of_day,
            base: None,
        }
    }

    #[test]
    fn the_time_of_day_counts_once_a_boot() {
        let first = Kept::at(None, &reading("a", 1_000, 500_000));
        assert_eq!((first.base, first.last), (499_000, 500_000));
        // The time of day is set back, and forward.
        for of_day in [0, 9_000_000] {
            let later = Kept::at(Some(&first), &reading("a", 1_250, of_day));
            assert_eq!((later.base, later.last), (499_000, 500_250));
        }
    }

    #[test]
    fn it_does_not_go_back_over_a_boot() {
        let before = Kept::at(None, &reading("a", 100_000, 500_000));
        let after = Kept::at(Some(&before), &reading("b", 10, 501_000));
        assert_eq!(after.last, 501_000);
        // The host has no battery for its clock.
        let after = Kept::at(Some(&before), &reading("b", 10, 0));
        assert_eq!(after.last, 500_000);
        let later = Kept::at(Some(&after), &reading("b", 30, 0));
        assert_eq!(later.last, 500_020);
    }

    /// The ids are those of two containers of one host, whose time of day is set forward, or is behind the clock.
    #[test]
    fn containers_with_ids_of_their_own_have_one_clock() {
        let mut kept = Kept::at(None, &reading("a", 1_000, 500_000));
        for (boot, since, of_day) in [
            ("b", 1_200, 505_200),
            ("a", 1_300, 505_300),
            ("b", 1_400, 0),
            ("a", 1_500, 0),
        ] {
            kept = Kept::at(Some(&kept), &reading(boot, since, of_day));
            assert_eq!(kept.last, 499_000 + since);
        }
    }

    /// The time of day of the host is set an hour forward, or back to 1970, while both containers use the file.
    #[test]
    fn who_uses_the_file_already_takes_no_step_for_a_boot() {
        let before = Kept::at(None, &reading("a", 100_000, 500_000));
        for of_day in [0, 4_100_000] {
            let mut reading = reading("b", 101_000, of_day);
            reading.base = Some(before.base);
            let mut after = Kept::at(Some(&before), &reading);
            assert_eq!((after.base, after.last), (400_000, 501_000));
            // The count is smaller than before, so the host has booted after all, or it has another count.
            reading.boot = Some(("b", 10));
            after = Kept::at(Some(&before), &reading);
            assert!(after.last >= before.last && after.base != before.base);
        }
    }

    /// The host was off for an hour, and has counted for longer than when the file was last used.
    #[test]
    fn a_boot_is_seen_by_the_time_of_day() {
        let before = Kept::at(None, &reading("a", 1_000, 500_000));
        let after = Kept::at(Some(&before), &reading("b", 2_000, 4_100_000));
        assert_eq!(after.last, 4_100_000);
    }

    /// Its count may begin elsewhere. Then the clock is rather slow than fast.
    #[test]
    fn a_container_with_a_count_of_its_own_does_not_move_the_clock_ahead() {
        let before = Kept::at(None, &reading("a", 1_000, 500_000));
        let after = Kept::at(Some(&before), &reading("b", 9_000_000, 500_100));
        assert_eq!(after.last, 500_100);
    }

    /// Both use the same file in turn. The clock is ahead of the time of day by no more than what counts as the same
    /// boot.
    #[test]
    fn containers_with_counts_of_their_own_do_not_move_the_clock_ahead_in_turn() {
        for offset in [200, 5_000, 9_990, 10_050, 9_000_000] {
            let mut kept = Kept::at(None, &reading("a", 1_000, 500_000));
            let mut bases = [None, Some(kept.base)];
            for turn in 1..100 {
                let (since, of_day) = (1_000 + 100 * turn, 500_000 + 100 * turn);
                for (container, (boot, ahead)) in [("b", offset), ("a", 0)].into_iter().enumerate()
                {
                    let mut reading = reading(boot, since + ahead, of_day);
                    reading.base = bases[container];
                    let before = kept.last;
                    kept = Kept::at(Some(&kept), &reading);
                    bases[container] = Some(kept.base);
                    assert!(kept.last >= before, "it goes back: {kept:?}");
                    assert!(kept.last <= of_day + 10_100, "{boot}, {offset}: {kept:?}");
                }
            }
        }
    }

    /// A virtual machine that continues from a snapshot has a smaller count than before.
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
        let of_day = |of_day| Reading {
            boot: None,
            of_day,
            base: None,
        };
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
