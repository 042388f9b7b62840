//! Tests of many leases on a store that is slow, unreachable or overloaded: the schedule with a simulated server, in
//! simulated time.

use std::collections::BTreeMap;

use super::{batches::*, *};

const MARGIN: Duration = Duration::from_millis(100);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A simulated server. It carries out one request after the other.
struct Server {
    /// How long a request takes, and how much longer for each of its leases.
    request: Duration,
    lease: Duration,
    /// When the server stands still: the start and the end.
    away: Option<(Instant, Instant)>,
    busy_until: Instant,
    expiries: BTreeMap<LeaseNumber, Instant>,
}

impl Server {
    fn new(start: Instant, lease: Duration) -> Self {
        Self {
            request: 2 * MILLISECOND,
            lease,
            away: None,
            busy_until: start,
            expiries: BTreeMap::new(),
        }
    }

    /// Takes a request for `leases` leases, and returns when it will have been carried out.
    fn take(&mut self, leases: usize, now: Instant) -> Instant {
        let mut begins = self.busy_until.max(now);
        if let Some((from, until)) = self.away
            && begins >= from
            && begins < until
        {
            begins = until;
        }
        self.busy_until = begins + self.request + self.lease * leases as u32;
        self.busy_until
    }

    fn renew(&mut self, lease: LeaseNumber, ttl: Duration, now: Instant) -> bool {
        let expiry = self.expiries.entry(lease).or_insert(now);
        if *expiry <= now {
            return false;
        }
        *expiry = now + ttl;
        true
    }
}

/// The counts of a run.
#[derive(Debug, Default)]
struct Seen {
    kept: usize,
    /// How many commands were sent, and the greatest number that were unanswered at the same time.
    commands: usize,
    unanswered: usize,
    /// How many leases were in all commands together.
    renewals: usize,
    was_late: bool,
}

/// Keeps `leases` leases alive for `time`.
fn keep(leases: usize, ttl: Duration, server: &mut Server, start: Instant, time: Duration) -> Seen {
    let mut schedule = Schedule::new();
    for number in 0..leases {
        // The leases were acquired over half a period.
        let at = start + ttl / 6 * number as u32 / leases as u32;
        let id = LeaseNumber::next();
        server.expiries.insert(id, at + ttl);
        schedule.insert(id, id, ttl, at + ttl / 3, at + ttl - MARGIN);
    }
    let (mut now, mut seen) = (start, Seen::default());
    let mut answers: BTreeMap<(Instant, BatchId), (Instant, Vec<LeaseNumber>)> = BTreeMap::new();
    let mut chance = 0.0;
    while now < start + time {
        let answer = answers.keys().next().copied();
        let next = schedule
            .next(now)
            .into_iter()
            .chain(answer.map(|(at, _)| at));
        let Some(next) = next.min() else { break };
        now = now.max(next);
        if let Some(key) = answer.filter(|(at, _)| *at <= now)
            && let Some((sent, batch)) = answers.remove(&key)
        {
            let outcome = |id: &LeaseNumber| {
                // As a guard does, this ignores an answer after the deadline.
                let live = schedule
                    .leases
                    .get(id)
                    .is_some_and(|entry| now < entry.deadline);
                if server.renew(*id, ttl, now) && live {
                    (*id, RenewalOutcome::Renewed(sent + ttl - MARGIN))
                } else {
                    (*id, RenewalOutcome::Lost)
                }
            };
            let outcomes: Vec<_> = batch.iter().map(outcome).collect();
            chance = (chance + 0.37) % 1.0;
            schedule.answered(key.1, &outcomes, now, chance);
        }
        for due in schedule.take_due(now) {
            let Due::Send(batch) = due else { continue };
            let ids: Vec<_> = batch.leases.iter().map(|(id, _)| *id).collect();
            seen.commands += 1;
            seen.renewals += ids.len();
            let at = server.take(ids.len(), now);
            answers.insert((at, batch.id), (now, ids));
        }
        seen.unanswered = seen.unanswered.max(answers.len());
        seen.was_late |= schedule.is_late(now);
    }
    seen.kept = schedule.load(now).kept;
    seen
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_fast_server_has_few_commands() {
    let start = Instant::now();
    let mut server = Server::new(start, Duration::from_micros(18));
    let seen = keep(10_000, SECOND * 20, &mut server, start, SECOND * 100);
    assert_eq!(seen.kept, 10_000, "{seen:?}");
    assert!(!seen.was_late, "{seen:?}");
    // 15 periods of 10 commands, and an eighth more to drift apart.
    assert!(seen.commands <= 15 * 10 * 5 / 4, "{seen:?}");
    assert!(seen.unanswered <= 4, "{seen:?}");
}

/// Each request takes a quarter of its response timeout, so none is sent again while the server works on it.
#[test]
fn a_slow_server_is_not_sent_the_same_again() {
    let start = Instant::now();
    let mut server = Server::new(start, Duration::from_micros(600));
    let seen = keep(10_000, SECOND * 20, &mut server, start, SECOND * 100);
    assert_eq!(seen.kept, 10_000, "{seen:?}");
    // Each lease was renewed once a period or less often, and hardly any renewal was useless.
    assert!(seen.renewals <= 10_000 * 15 * 5 / 4, "{seen:?}");
}

/// Even a request for a few leases takes longer than its response timeout.
#[test]
fn a_server_that_cannot_answer_in_time_is_not_flooded() {
    let start = Instant::now();
    let mut server = Server::new(start, MILLISECOND * 10);
    let seen = keep(10_000, SECOND * 20, &mut server, start, SECOND * 200);
    assert!(seen.was_late, "{seen:?}");
    assert!(seen.unanswered <= MOST_UNANSWERED, "{seen:?}");
    // It can renew 100 leases a second, see below.
    assert!(seen.kept >= 100 * 20 * 5 / 6 * 8 / 10, "{seen:?}");
}

#[test]
fn a_server_that_is_away_for_a_while_loses_none() {
    let start = Instant::now();
    for away in [4, 8] {
        let mut server = Server::new(start, Duration::from_micros(18));
        server.away = Some((start + SECOND * 30, start + SECOND * (30 + away)));
        let seen = keep(10_000, SECOND * 20, &mut server, start, SECOND * 60);
        assert_eq!(seen.kept, 10_000, "away for {away} s: {seen:?}");
        assert!(seen.commands <= 9 * 10 * 2, "{seen:?}");
    }
}

/// With more leases than the server can renew, as many of them stay live as it can renew.
#[test]
fn what_is_too_much_is_given_up_and_the_rest_lives_on() {
    let start = Instant::now();
    for (leases, micros) in [(10_000, 3_000), (20_000, 2_000), (20_000, 1_250)] {
        let lease = Duration::from_micros(micros);
        let mut server = Server::new(start, lease);
        let ttl = SECOND * 20;
        let seen = keep(leases, ttl, &mut server, start, SECOND * 120);
        // All first renewals are between a third of a ttl and the time at which the last of the leases would be lost,
        // a sixth of a ttl later than the first lease. No lease is acquired later.
        let possible = (ttl.as_secs_f64() * 5.0 / 6.0 / lease.as_secs_f64()) as usize;
        let possible = possible.min(leases);
        assert!(
            seen.kept * 20 >= possible * 17,
            "{leases} at {micros} us each, {possible} are possible: {seen:?}"
        );
        assert!(seen.was_late);
        assert!(seen.unanswered <= MOST_UNANSWERED, "{seen:?}");
    }
}
