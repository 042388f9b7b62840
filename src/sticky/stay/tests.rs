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
        let left = stay.leave(lease.number(), Departure::Ticketed, now);
        assert_eq!(left, departed(Left::Nothing, true, false));
        // It is not there any more, so what it wants is not what the others get.
        let again = stay.leave(lease.number(), Departure::Detached, now);
        assert_eq!(again, departed(Left::Nothing, false, false));
    }
    // The stay has not ended.
    let another = granted(stay.try_enter(shared(), now));
    let leave = |lease: &LeaseState| stay.leave(lease.number(), Departure::Ticketed, now);
    assert_eq!(leave(&another), departed(Left::Nothing, true, false));
    assert_eq!(leave(&leases[2]), departed(Left::Detach, true, true));
}

fn departed(left: Left, was_there: bool, detaches: bool) -> Departed {
    Departed {
        left,
        was_there,
        detaches,
    }
}

/// The close releases the lease in the store, whatever the last guard wants of it. But if a guard has detached it beside
/// others before, the close leaves it alone.
#[test]
fn a_lease_that_a_close_releases_is_given_to_nobody() {
    let now = Instant::now();
    for how in [Departure::Detached, Departure::Ticketed] {
        let stay = stay(now);
        let lease = granted(stay.try_enter(request(), now));
        assert_eq!(stay.close(), Closing::IsReleased);
        let left = stay.leave(lease.number(), how, now);
        assert_eq!(left, departed(Left::Nothing, true, false));
        assert_eq!(stay.end(), Left::Release);
    }
    let stay = stay(now);
    let leases = [(); 2].map(|()| granted(stay.try_enter(request().shared(), now)));
    let left = stay.leave(leases[0].number(), Departure::Detached, now);
    assert_eq!(left, departed(Left::Nothing, true, true));
    assert_eq!(stay.close(), Closing::IsDetached);
}
