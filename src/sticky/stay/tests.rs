use chrono::DateTime;

use super::*;
use crate::{
    lease_state::GrantTerms,
    messages::{AcquireRequest, Grant},
    model::{Fence, LeaseId, after},
    runtime::suspension,
};

const TTL: Duration = Duration::from_secs(10);

fn request() -> AcquireRequest {
    let key = Key::new("k").unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), TTL)
}

fn stay(now: Instant) -> Arc<Stay> {
    let terms = GrantTerms {
        request: Arc::new(request()),
        clock_margin: Duration::ZERO,
        asked_once: true,
    };
    let at = DateTime::UNIX_EPOCH;
    let grant = Grant {
        fence: Fence::new(5_000),
        acquired_at: at,
        expires_at: after(at, TTL),
        now: at,
    };
    let stored = Arc::new(LeaseState::new(terms, &grant, now).unwrap());
    let behind = BackingLease::new(stored, suspension::total());
    let fences = Fences::of_grant(behind.lease().fence());
    Stay::begin(behind, Some(fences), TTL, now)
}

fn granted(entry: LocalAnswer) -> Arc<LeaseState> {
    match entry {
        LocalAnswer::Granted(lease) => lease,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reentrant_lease_enters_until_the_lease_is_converted() {
    let now = Instant::now();
    let stay = stay(now);
    let reentrant = || request().reentrant();
    let first = granted(stay.try_enter(request(), now));
    let second = granted(stay.try_enter(reentrant(), now));
    assert_eq!(second.fence(), first.fence());
    assert_eq!(stay.end(), Left::Nothing);
    assert!(matches!(
        stay.try_enter(request(), now),
        LocalAnswer::StoreNeeded
    ));
    // Its units are those of the first one, which goes on after the end.
    granted(stay.try_enter(reentrant(), now));
    stay.begin_to_convert();
    assert!(matches!(
        stay.try_enter(reentrant(), now),
        LocalAnswer::StoreNeeded
    ));
}

#[test]
fn nothing_enters_while_the_lease_is_converted() {
    let now = Instant::now();
    let stay = stay(now);
    let first = granted(stay.try_enter(request().shared(), now));
    stay.begin_to_convert();
    assert!(matches!(
        stay.try_enter(request().shared(), now),
        LocalAnswer::StoreNeeded
    ));
    assert!(first.is_live(now));
}

#[test]
fn only_the_last_lease_takes_the_lease_in_the_store_with_its_ticket() {
    let now = Instant::now();
    let stay = stay(now);
    let shared = || request().shared();
    let leases = [(); 3].map(|()| granted(stay.try_enter(shared(), now)));
    for lease in &leases[..2] {
        let (left, was_there) = stay.leave(lease.number(), Departure::Ticketed, now);
        assert!(left == Left::Nothing && was_there);
        // It is not there any more, so what it wants is not what the others get.
        let again = stay.leave(lease.number(), Departure::Detached, now);
        assert_eq!(again, (Left::Nothing, false));
    }
    // The stay has not ended.
    let another = granted(stay.try_enter(shared(), now));
    let leave = |lease: &LeaseState| stay.leave(lease.number(), Departure::Ticketed, now);
    assert_eq!(leave(&another), (Left::Nothing, true));
    assert_eq!(leave(&leases[2]), (Left::Detach, true));
}
