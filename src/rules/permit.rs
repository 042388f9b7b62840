//! The rule of a limiter: how many permits are granted.

#[cfg(test)]
mod tests;

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::decision::Decision;
use crate::{
    messages::{GiveBackRequest, PermitAnswer, PermitRequest},
    model::{LimiterRecord, PermitsLeft, Quota, WindowKind, after, between},
};

/// How far a server's clock may step back. Within this bound, a limiter uses the time of its newest grant as the time
/// now, until the clock has passed it.
///
/// A newest grant that is further ahead was made by a wrong clock. The limiter ignores it, unless it is in the current
/// fixed window, because it might otherwise grant nothing for years.
pub const CLOCK_STEP: Duration = Duration::from_secs(10);

/// The elapsed time of a smooth limiter is capped at this many milliseconds, a year and a day, so that it does not
/// overflow in nanoseconds. No quota needs longer until all of its permits are back.
pub(crate) const YEAR: i64 = 366 * 24 * 60 * 60 * 1_000;
const NANOS: i64 = 1_000_000;

/// Grants permits to as many of the request's callers as the limiter has room for. A refusal writes nothing.
///
/// `record` is the document of the key for windows of this length and kind. A request with another limit or burst
/// counts the permits that the document says are used, and never waits for them longer than a window. With a smaller
/// burst it counts no more than its own, and leaves the rest of the debt in the document: for requests with the greater
/// burst those permits are not back yet.
///
/// A request with the id of the newest grant gets that grant as its answer, while the window of that grant lasts. So a
/// repeated request takes no permits twice. After the window it gets a new grant.
pub fn permit(
    record: Option<&LimiterRecord>,
    request: &PermitRequest,
    now: DateTime<Utc>,
) -> Decision<PermitAnswer, LimiterRecord> {
    let usage = QuotaUse::new(record, &request.quota, now);
    if let Some(record) = record.filter(|record| usage.is_newest(record, request)) {
        return Decision::keep(answer_permit(record, request, now));
    }
    let permits = i64::from(request.permits.max(1));
    let times = usage.room(&request.quota) / permits;
    match times.min(request.times.max(1).into()) {
        0 => Decision::keep(usage.full(request)),
        times => {
            let granted = usage.after(request, permits * times);
            Decision::put(granted, |granted| answer_permit(granted, request, now))
        }
    }
}

/// Reads the answer to a request for permits from the document, as the operation left it.
pub fn answer_permit(
    record: &LimiterRecord,
    request: &PermitRequest,
    now: DateTime<Utc>,
) -> PermitAnswer {
    let usage = QuotaUse::new(Some(record), &request.quota, now);
    if usage.is_newest(record, request) {
        PermitAnswer::Granted {
            permits: u32::try_from(record.granted).unwrap_or(u32::MAX),
            granted_at: record.granted_at,
            retry_in: usage.wait(&request.quota, request.permits),
            left: usage.left(&request.quota),
        }
    } else {
        usage.full(request)
    }
}

/// What a limiter has left for requests with this quota at this time.
pub fn peek(record: Option<&LimiterRecord>, quota: &Quota, now: DateTime<Utc>) -> PermitsLeft {
    QuotaUse::new(record, quota, now).left(quota)
}

/// Makes permits that were not used available again, as far as that is certain not to exceed the limit:
///
/// - with fixed windows all of them, if the newest grant of the document was made in their window;
/// - with smooth ones what cannot have come back by itself. Permits come back one after the other, so of these no more
///   can have come back than the time since their grant is worth.
///
/// A document whose newest grant is older than these permits has forgotten them, so it stays as it is. The request has
/// no effect that shows that it was carried out, so it must not be sent twice.
pub fn give_back(
    record: Option<&LimiterRecord>,
    request: &GiveBackRequest,
    now: DateTime<Utc>,
) -> Decision<(), LimiterRecord> {
    let used = record.map(|record| record.used.saturating_sub(returned(record, request, now)));
    match (record, used.map(|used| used.max(0))) {
        (Some(record), Some(used)) if used < record.used => {
            let record = record.clone();
            Decision::put(LimiterRecord { used, ..record }, |_| ())
        }
        _ => Decision::keep(()),
    }
}

/// What the permits of the request still count in a document, in the unit of its `used`.
fn returned(record: &LimiterRecord, request: &GiveBackRequest, now: DateTime<Utc>) -> i64 {
    let (quota, permits) = (&request.quota, i64::from(request.permits));
    let granted_at = request.granted_at;
    let counts = match quota.window_kind() {
        WindowKind::Fixed => window_of(quota, record.granted_at) == window_of(quota, granted_at),
        WindowKind::Smooth { .. } => record.granted_at <= after(now, CLOCK_STEP),
    };
    if !counts || record.granted_at < granted_at {
        return 0;
    }
    match quota.window_kind() {
        WindowKind::Fixed => permits,
        WindowKind::Smooth { .. } => {
            let passed = between(granted_at, record.granted_at.max(now)).as_millis();
            let passed = i64::try_from(passed).unwrap_or(YEAR).min(YEAR);
            let cost = permits.saturating_mul(quota.interval_nanos());
            cost.saturating_sub(passed * NANOS).max(0)
        }
    }
}

/// Whether a limiter has limited no request for the retention, so that its document can be removed.
pub fn is_over(record: &LimiterRecord, retention: Duration, now: DateTime<Utc>) -> bool {
    after(record.over_at, retention) <= now
}

/// How much of a quota is used at a given time, by the document of a limiter.
struct QuotaUse {
    /// The server's time.
    now: DateTime<Utc>,
    /// The server's time in milliseconds, or the time of the newest grant if that is later.
    clock: i64,
    /// The start of the window of `clock`, in milliseconds.
    start: i64,
    /// What is used: permits with fixed windows; with smooth ones, the nanoseconds until all permits are back.
    used: i64,
    /// The same without the bound of the quota's own burst. A grant adds its permits to this.
    owed: i64,
}

impl QuotaUse {
    fn new(record: Option<&LimiterRecord>, quota: &Quota, now: DateTime<Utc>) -> Self {
        let record = record.filter(|record| {
            let same = || window_of(quota, record.granted_at) == window_of(quota, now);
            record.granted_at <= after(now, CLOCK_STEP)
                || quota.window_kind() == WindowKind::Fixed && same()
        });
        let newest = record.map(|record| record.granted_at.timestamp_millis());
        let clock = newest.unwrap_or(i64::MIN).max(now.timestamp_millis());
        let start = window_of(quota, time(clock));
        let (used, owed) = match (record, quota.window_kind()) {
            (None, _) => (0, 0),
            (Some(record), WindowKind::Fixed) if newest >= Some(start) => {
                (record.used, record.used)
            }
            (Some(_), WindowKind::Fixed) => (0, 0),
            (Some(record), WindowKind::Smooth { .. }) => {
                let elapsed = clock.saturating_sub(newest.unwrap_or(clock)).min(YEAR);
                let left = |most| record.used.min(most).saturating_sub(elapsed * NANOS).max(0);
                (left(quota.credit_nanos()), left(quota.max_debt_nanos()))
            }
        };
        Self {
            now,
            clock,
            start,
            used,
            owed,
        }
    }

    /// Whether the newest grant is the grant of this request, in the window of `clock`.
    fn is_newest(&self, record: &LimiterRecord, request: &PermitRequest) -> bool {
        let granted_at = record.granted_at.timestamp_millis();
        record.last == request.id && (self.start..=self.clock).contains(&granted_at)
    }

    /// How many permits are free.
    fn room(&self, quota: &Quota) -> i64 {
        match quota.window_kind() {
            WindowKind::Fixed => i64::from(quota.limit()).saturating_sub(self.used).max(0),
            // The generic cell rate algorithm, in its form of a leaky bucket (ITU-T I.371).
            WindowKind::Smooth { .. } => {
                (quota.credit_nanos() - self.used) / quota.interval_nanos()
            }
        }
    }

    /// The answer of a refusal. It may be read at a later time than the one that decided, when the permits are free
    /// again. So it says at least a millisecond.
    fn full(&self, request: &PermitRequest) -> PermitAnswer {
        let retry_in = self.wait(&request.quota, request.permits);
        let retry_in = retry_in.max(Duration::from_millis(1));
        let mut left = self.left(&request.quota);
        left.remaining = left.remaining.min(request.permits.saturating_sub(1));
        left.reset_in = left.reset_in.max(retry_in);
        PermitAnswer::Full { retry_in, left }
    }

    /// What is left of a quota, and when all of it is free again.
    fn left(&self, quota: &Quota) -> PermitsLeft {
        let limit = quota.most_at_once();
        PermitsLeft {
            limit,
            remaining: u32::try_from(self.room(quota)).unwrap_or(0).min(limit),
            reset_in: self.wait(quota, limit),
        }
    }

    /// How long it takes until this many permits are free, on the server's clock.
    fn wait(&self, quota: &Quota, permits: u32) -> Duration {
        let permits = i64::from(permits);
        if self.room(quota) >= permits {
            return Duration::ZERO;
        }
        let free = match quota.window_kind() {
            WindowKind::Fixed => self.start.saturating_add(quota.window_millis()),
            WindowKind::Smooth { .. } => {
                let wanted = permits.saturating_mul(quota.interval_nanos());
                let least = quota.credit_nanos().saturating_sub(wanted);
                let missing = self.used.saturating_sub(least).max(0);
                // Rounded up to whole milliseconds, the resolution of the clock.
                self.clock
                    .saturating_add(missing / NANOS + i64::from(missing % NANOS > 0))
            }
        };
        between(self.now, time(free))
    }

    /// The document after a grant of this many permits.
    fn after(&self, request: &PermitRequest, granted: i64) -> LimiterRecord {
        let quota = &request.quota;
        let cost = match quota.window_kind() {
            WindowKind::Fixed => granted,
            WindowKind::Smooth { .. } => granted.saturating_mul(quota.interval_nanos()),
        };
        LimiterRecord {
            key: request.key.clone(),
            granted_at: time(self.clock),
            used: self.owed.saturating_add(cost),
            last: request.id,
            granted,
            over_at: time(self.start.saturating_add(quota.memory_millis())),
        }
    }
}

/// The start of the window of this time, in milliseconds.
fn window_of(quota: &Quota, time: DateTime<Utc>) -> i64 {
    let millis = time.timestamp_millis();
    millis.saturating_sub(millis.rem_euclid(quota.window_millis()))
}

fn time(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(millis).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
