//! For whom, and for how long, a free key is kept.

use super::*;

#[test]
fn a_free_key_is_kept_for_the_places_ahead_until_they_are_over() {
    let all: [_; 4] = processes();
    let mut record = free_with(&all.map(wait));
    for (place, until) in record.waiters.iter_mut().zip([2_000, 2_500, 3_000, 9_000]) {
        place.until = at(until);
    }
    let opens = [1_000, 2_000, 2_500, 3_000];
    for (place, (waiter, opens)) in all.into_iter().zip(opens).enumerate() {
        if place > 0 {
            let (held, written) = refused(&record, &wait(waiter), opens - 1);
            assert_eq!(held.binds_for(), Duration::from_millis(1));
            assert!(
                written.is_some() || place == 3,
                "{place}: its place counts for longer now"
            );
        }
        passes(&record, &wait(waiter), opens);
    }
}

#[test]
fn a_free_key_is_kept_for_all_places_together_not_for_long() {
    let all: [_; 3] = processes();
    let record = free_with(&all.map(wait));
    let [.., last] = all;
    let over = 1_000 + i64::try_from(MAX_BIND_TIME.as_millis()).unwrap();
    let (held, _) = refused(&record, &wait(last), over - 1);
    assert_eq!(
        (held.ahead(), held.binds_for()),
        (2, Duration::from_millis(1))
    );
    // The places that it has passed had their turn.
    assert_eq!(waiters(&passes(&record, &wait(last), over)), []);
    // A request without a place comes last.
    let other = ask(LeaseId::random());
    refused(&record, &other, over - 1);
    assert_eq!(waiters(&passes(&record, &other, over)), []);
}

/// A reader behind a writer has more places before it than the writer, even if it could share the key with those before
/// the writer.
#[test]
fn who_is_further_ahead_may_take_a_free_key_earlier() {
    let [gone, writer, reader] = processes();
    let mut record = free_with(&[wait(gone).shared(), wait(writer), wait(reader).shared()]);
    record.waiters[0].until = at(1_500);
    refused(&record, &wait(writer), 1_499);
    refused(&record, &wait(reader).shared(), 1_500);
    let record = passes(&record, &wait(writer), 1_500);
    assert_eq!(waiters(&record), [reader]);
}

#[test]
fn a_key_whose_holder_has_died_is_kept_from_its_expiry_on() {
    let [one, two] = processes();
    let record = held_with(&[wait(one), wait(two)]);
    refused(&record, &wait(one), 9_999);
    passes(&record, &wait(one), 10_000);
    assert_eq!(
        refused(&record, &wait(two), 10_000).0.binds_for(),
        MAX_BIND_TIME
    );
    let over = 10_000 + i64::try_from(MAX_BIND_TIME.as_millis()).unwrap();
    assert_eq!(waiters(&passes(&record, &wait(two), over)), []);
}

#[test]
fn a_clock_that_stepped_back_binds_nobody() {
    let [one, two] = processes();
    let mut record = free_with(&[wait(one), wait(two)]);
    record.expires_at = at(10_000);
    passes(&record, &wait(two), 5_999);
    passes(&record, &ask(LeaseId::random()), 5_999);
    // The request's time is from before it waited for the release.
    let (held, _) = refused(&record, &wait(two), 6_000);
    assert_eq!(held.binds_for(), MAX_BIND_TIME);
    refused(&record, &wait(two), 10_000);
}
