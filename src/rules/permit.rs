//! The rule of a limiter: how many calls are let through.

#[cfg(test)]
mod tests;

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::decision::{Decision, Write};
use crate::{
    messages::{PermitAnswer, PermitRequest},
    model::{LimiterRecord, Quota, after, between},
};

/// How far a server's clock may go back without a limiter beginning anew: it stands still for the
/// limiter meanwhile. A grant from further ahead was made by a clock that was wrong, and waiting for it
/// could take for ever.
pub const CLOCK_STEP: Duration = Duration::from_secs(10);

/// No debt takes longer to be earned back, in milliseconds.
pub(crate) const YEAR: i64 = 366 * 24 * 60 * 60 * 1_000;
const NANOS: i64 = 1_000_000;

/// Grants the permits as many times as there is room for them, up to the times that are asked for.
///
/// The document is that of the key for windows of this length and kind. Another limit or burst goes on
/// from what it says is used up, and waits for no longer than a window.
///
/// A request with the name of the newest grant is answered with that one, as long as its window lasts:
/// so a repeated request takes nothing again, and gives nothing of a window that is over. A refusal
/// writes nothing.
pub fn permit(
    record: Option<&LimiterRecord>,
    request: &PermitRequest,
    now: DateTime<Utc>,
) -> Decision<PermitAnswer, LimiterRecord> {
    let usage = Usage::new(record, &request.quota, now);
    if let Some(record) = record.filter(|record| usage.is_newest(record, request)) {
        return Decision {
            write: Write::Keep,
            answer: answer_permit(record, request, now),
        };
    }
    let permits = i64::from(request.permits.max(1));
    let times = usage.room(&request.quota) / permits;
    match times.min(request.times.max(1).into()) {
        0 => Decision {
            write: Write::Keep,
            answer: usage.full(request),
        },
        times => {
            let granted = usage.after(request, permits * times);
            Decision {
                answer: answer_permit(&granted, request, now),
                write: Write::Put(granted),
            }
        }
    }
}

/// Reads the answer to a request for permits from the document as the operation left it.
pub fn answer_permit(
    record: &LimiterRecord,
    request: &PermitRequest,
    now: DateTime<Utc>,
) -> PermitAnswer {
    let usage = Usage::new(Some(record), &request.quota, now);
    if usage.is_newest(record, request) {
        PermitAnswer::Granted {
            permits: u32::try_from(record.granted).unwrap_or(u32::MAX),
            granted_at: record.granted_at,
            retry_in: usage.wait(&request.quota, request.permits),
        }
    } else {
        usage.full(request)
    }
}

/// Whether a limiter's document means nothing any more, since this long.
pub fn is_over(record: &LimiterRecord, retention: Duration, now: DateTime<Utc>) -> bool {
    after(record.over_at, retention) <= now
}

/// What a document says under a quota, at a time.
struct Usage {
    /// The server's time.
    now: DateTime<Utc>,
    /// The same in milliseconds, but never before the newest grant.
    clock: i64,
    /// When the window began, in milliseconds.
    start: i64,
    /// What is used up by now, in the unit of the kind.
    used: i64,
}

impl Usage {
    fn new(record: Option<&LimiterRecord>, quota: &Quota, now: DateTime<Utc>) -> Self {
        let millis = now.timestamp_millis();
        let window_of =
            |millis: i64| millis.saturating_sub(millis.rem_euclid(quota.window_millis()));
        let record = record.filter(|record| {
            let same = || window_of(record.granted_at.timestamp_millis()) == window_of(millis);
            record.granted_at <= after(now, CLOCK_STEP) || quota.burst().is_none() && same()
        });
        let newest = record.map(|record| record.granted_at.timestamp_millis());
        let clock = newest.map_or(millis, |newest| newest.max(millis));
        let start = window_of(clock);
        let used = match (record, quota.burst()) {
            (None, _) => 0,
            (Some(record), None) if newest >= Some(start) => record.used,
            (Some(_), None) => 0,
            (Some(record), Some(_)) => {
                let elapsed = clock.saturating_sub(newest.unwrap_or(clock)).min(YEAR);
                let debt = record.used.min(quota.credit_nanos());
                debt.saturating_sub(elapsed * NANOS).max(0)
            }
        };
        Self {
            now,
            clock,
            start,
            used,
        }
    }

    /// Whether the newest grant is that of this request, and of this window.
    fn is_newest(&self, record: &LimiterRecord, request: &PermitRequest) -> bool {
        let granted_at = record.granted_at.timestamp_millis();
        record.last == request.id && (self.start..=self.clock).contains(&granted_at)
    }

    /// How many permits there are.
    fn room(&self, quota: &Quota) -> i64 {
        match quota.burst() {
            None => i64::from(quota.limit()).saturating_sub(self.used).max(0),
            // The generic cell rate algorithm, in its form of a leaky bucket (ITU-T I.371).
            Some(_) => (quota.credit_nanos() - self.used) / quota.interval_nanos(),
        }
    }

    fn full(&self, request: &PermitRequest) -> PermitAnswer {
        let retry_in = self.wait(&request.quota, request.permits);
        PermitAnswer::Full { retry_in }
    }

    /// How long until there are so many, on the server's clock.
    fn wait(&self, quota: &Quota, permits: u32) -> Duration {
        let permits = i64::from(permits);
        if self.room(quota) >= permits {
            return Duration::ZERO;
        }
        let free = match quota.burst() {
            None => self.start.saturating_add(quota.window_millis()),
            Some(_) => {
                let wanted = permits.saturating_mul(quota.interval_nanos());
                let least = quota.credit_nanos().saturating_sub(wanted);
                let missing = self.used.saturating_sub(least).max(0);
                // In whole milliseconds, as the clock goes.
                self.clock
                    .saturating_add(missing / NANOS + i64::from(missing % NANOS > 0))
            }
        };
        between(self.now, time(free))
    }

    /// The document after a grant of so many permits.
    fn after(&self, request: &PermitRequest, granted: i64) -> LimiterRecord {
        let quota = &request.quota;
        let cost = match quota.burst() {
            None => granted,
            Some(_) => granted.saturating_mul(quota.interval_nanos()),
        };
        LimiterRecord {
            key: request.key.clone(),
            granted_at: time(self.clock),
            used: self.used.saturating_add(cost),
            last: request.id,
            granted,
            over_at: time(self.start.saturating_add(quota.memory_millis())),
        }
    }
}

fn time(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(millis).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
