//! `Tick` and `Done`: the runs of a job, and the newest one that is done.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use chrono::{DateTime, NaiveDate, SecondsFormat, TimeDelta, Utc};

use super::{brief::quoted, ids::LeaseId};

/// One run of a job: its scheduled time, a date, a version or a number. All processes use the same tick for the same
/// run. Ticks of one kind are ordered, and a later tick is a later run. Ticks of different kinds cannot be compared.
///
/// A tick is made from a time, a date or a number by `From`, from a version by [`Tick::version`], and from a text by
/// [`parse`](str::parse).
///
/// ```
/// use chrono::NaiveDate;
/// use leasehold::jobs::Tick;
///
/// let day: Tick = "2026-11-24".parse()?;
/// assert_eq!(day, Tick::from(NaiveDate::from_ymd_opt(2026, 11, 24).unwrap()));
/// assert!(Tick::version(1, 10, 0) > Tick::version(1, 9, 3));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tick {
    kind: TickKind,
    number: i64,
}

/// What kind of value a [`Tick`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TickKind {
    /// An instant, in whole milliseconds.
    Time,
    /// A day of the calendar.
    Date,
    /// A version of three numbers.
    Version,
    /// A number that is counted up.
    Counter,
}

/// The number of bits of the second and the third number of a version.
const PART: u32 = 16;

impl Tick {
    /// The tick of the version `major.minor.patch`.
    pub const fn version(major: u16, minor: u16, patch: u16) -> Self {
        let number = ((major as i64) << (2 * PART)) | ((minor as i64) << PART) | patch as i64;
        Self::stored(TickKind::Version, number)
    }

    /// The tick of a number that is counted up.
    pub const fn counter(number: i64) -> Self {
        Self::stored(TickKind::Counter, number)
    }

    /// For authors of stores: a tick as a store keeps it, by its kind and its [number](Tick::number).
    pub const fn stored(kind: TickKind, number: i64) -> Self {
        Self { kind, number }
    }

    /// The kind of the tick.
    pub const fn kind(self) -> TickKind {
        self.kind
    }

    /// The number by which ticks of one kind are ordered. For a time, the milliseconds since 1970; for a date, the days
    /// since 1970.
    pub const fn number(self) -> i64 {
        self.number
    }
}

impl TickKind {
    pub(crate) const ALL: [Self; 4] = [Self::Time, Self::Date, Self::Version, Self::Counter];

    /// The word for the kind, as documents contain it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Date => "date",
            Self::Version => "version",
            Self::Counter => "counter",
        }
    }

    /// The kind for this word; `None` for any other word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl fmt::Display for TickKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialOrd for Tick {
    /// Ticks of different kinds have no order.
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self.kind == other.kind).then(|| self.number.cmp(&other.number))
    }
}

impl From<DateTime<Utc>> for Tick {
    fn from(time: DateTime<Utc>) -> Self {
        Self::stored(TickKind::Time, time.timestamp_millis())
    }
}

impl From<SystemTime> for Tick {
    fn from(time: SystemTime) -> Self {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let number = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => millis(after),
            Err(before) => -millis(before.duration()),
        };
        Self::stored(TickKind::Time, number)
    }
}

impl From<NaiveDate> for Tick {
    fn from(date: NaiveDate) -> Self {
        let days = date.signed_duration_since(NaiveDate::default()).num_days();
        Self::stored(TickKind::Date, days)
    }
}

impl From<i64> for Tick {
    fn from(number: i64) -> Self {
        Self::counter(number)
    }
}

/// An integer literal without a type is an `i32`.
impl From<i32> for Tick {
    fn from(number: i32) -> Self {
        Self::counter(number.into())
    }
}

impl From<u32> for Tick {
    fn from(number: u32) -> Self {
        Self::counter(number.into())
    }
}

impl fmt::Display for Tick {
    /// Writes the tick in the form that [`parse`](str::parse) reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number;
        match self.kind {
            TickKind::Time => match DateTime::from_timestamp_millis(number) {
                Some(time) => f.write_str(&time.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
                None => write!(f, "{number} ms"),
            },
            TickKind::Date => match day(number) {
                Some(date) => write!(f, "{date}"),
                None => write!(f, "day {number}"),
            },
            TickKind::Version => {
                let part = |places: u32| number >> (places * PART) & i64::from(u16::MAX);
                let major = number >> (2 * PART);
                write!(f, "{major}.{}.{}", part(1), part(0))
            }
            TickKind::Counter => write!(f, "{number}"),
        }
    }
}

fn day(number: i64) -> Option<NaiveDate> {
    NaiveDate::default().checked_add_signed(TimeDelta::try_days(number)?)
}

/// The newest tick of a job that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// The tick. No earlier tick runs any more.
    pub tick: Tick,
    /// When it was done, on the server's clock.
    pub at: DateTime<Utc>,
    /// The owner of the lease under which it was done.
    pub by: Arc<str>,
    /// The id of that lease.
    pub lease: LeaseId,
    /// Until when the store keeps this, on the server's clock. After that time a clean-up may remove it, and then the
    /// tick can be done again.
    pub until: DateTime<Utc>,
}

impl Done {
    /// For authors of stores: the tick `tick`, done at `at` under `lease` of the owner `by`, which the store keeps
    /// until `until`.
    pub fn new(
        tick: Tick,
        (lease, by): (LeaseId, Arc<str>),
        at: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Self {
        Self {
            tick,
            at,
            by,
            lease,
            until,
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.to_rfc3339_opts(SecondsFormat::Secs, true);
        write!(f, "{} was done by {} at {at}", self.tick, quoted(&self.by))
    }
}

/// The newest done tick, as the document of a lock tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LastDone {
    /// No tick is done, or the store has forgotten it.
    #[default]
    Nothing,
    /// This tick is done, and no earlier one runs any more.
    Tick(Done),
    /// The field cannot be read. The job does not run then, because it may be done. Neither
    /// [`purge`](crate::Leases::purge) nor [`remove_expired`](crate::Leases::remove_expired) removes the document.
    Unreadable,
}

impl LastDone {
    /// The tick, if one is done.
    pub(crate) fn tick(&self) -> Option<&Done> {
        match self {
            Self::Tick(done) => Some(done),
            Self::Nothing | Self::Unreadable => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Error;

    #[test]
    fn a_tick_is_read_as_it_is_shown() {
        for (text, kind) in [
            ("17", TickKind::Counter),
            ("-3", TickKind::Counter),
            ("20261124", TickKind::Counter),
            ("2026-11-24", TickKind::Date),
            ("1969-12-31", TickKind::Date),
            ("2026-11-24T03:00:00Z", TickKind::Time),
            ("2026-11-24T03:00:00.250Z", TickKind::Time),
            ("1.20.3", TickKind::Version),
            ("65535.0.65535", TickKind::Version),
        ] {
            let tick: Tick = text.parse().unwrap();
            assert_eq!((tick.kind(), &*tick.to_string()), (kind, text));
            assert_eq!(Tick::stored(tick.kind(), tick.number()), tick);
        }
        let version: Tick = "1.2".parse().unwrap();
        assert_eq!(version, Tick::version(1, 2, 0));
        for text in [
            "",
            "daily",
            "1.2.3.4",
            "1.70000.0",
            "2026-13-01",
            "1.2-rc1",
            " 1",
        ] {
            let error = text.parse::<Tick>().unwrap_err();
            assert!(matches!(error, Error::InvalidTick { .. }), "{text}");
        }
    }

    #[test]
    fn a_time_of_the_system_is_the_same_tick() {
        for millis in [-1_500, 0, 1_764_000_000_250] {
            let time = DateTime::from_timestamp_millis(millis).unwrap();
            assert_eq!(Tick::from(SystemTime::from(time)), Tick::from(time));
        }
    }

    #[test]
    fn ticks_of_a_kind_are_in_order_and_others_are_not() {
        let in_order = [
            ["9", "10"],
            ["2026-09-30", "2026-10-01"],
            ["2026-11-24T03:00:00Z", "2026-11-24T03:00:00.001Z"],
            ["1.9.9", "1.10.0"],
            ["1.65535.65535", "2.0.0"],
        ];
        for pair in in_order {
            let [one, other] = pair.map(|text| text.parse::<Tick>().unwrap());
            assert_eq!(
                one.partial_cmp(&other),
                Some(std::cmp::Ordering::Less),
                "{pair:?}"
            );
        }
        let [number, date] = ["20261124", "2026-11-24"].map(|text| text.parse::<Tick>().unwrap());
        assert_eq!(number.partial_cmp(&date), None);
    }

    #[test]
    fn a_number_that_no_calendar_has_can_be_shown() {
        for kind in TickKind::ALL {
            for number in [i64::MIN, i64::MAX] {
                assert!(!Tick::stored(kind, number).to_string().is_empty());
            }
            assert_eq!(TickKind::parse(kind.as_str()), Some(kind));
        }
    }
}
