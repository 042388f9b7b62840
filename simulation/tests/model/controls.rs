//! A rule that is wrong in one place violates the property that is about it.

use std::collections::BTreeSet;

use leasehold::store::{Access, Permits, ReleaseRequest, Turn};
use stateright::{Checker, HasDiscoveries, Model};

use super::{
    conversions, exclusive,
    judges::{DEAD, EXCLUSION, FENCES, FREE, ONCE, ORDER, PLACES},
    once, permits, readers_and_a_writer, readers_and_a_writer_in_turn, reentrant,
    server::{
        Call,
        Fault::{self, After, Before},
    },
    state::{CLIENTS, TICK, at, waiter},
    steps::Setting,
};

fn violates(property: &'static str, fault: Fault, mut setting: Setting) {
    setting.fault = Some(fault);
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = setting.checker().finish_when(found).spawn_bfs().join();
    checker.assert_any_discovery(property);
}

macro_rules! controls {
    ($($name:ident: $setting:ident violates $property:ident by $fault:expr;)*) => {$(
        #[test]
        fn $name() {
            violates($property, $fault, $setting());
        }
    )*};
}

controls! {
    a_held_key_is_granted: exclusive violates EXCLUSION by Before(|record, call, _| {
        if let Call::Acquire(_) = call {
            record.holders.clear();
        }
    });
    a_lease_expires_a_tick_early: exclusive violates EXCLUSION by Before(|_, call, now| {
        if let Call::Acquire(_) = call {
            *now += TICK;
        }
    });
    a_release_is_of_any_lease: exclusive violates EXCLUSION by Before(|record, call, _| {
        if let (Call::Release(request), Some(first)) = (call, record.holders.first()) {
            request.lease = first.lease;
        }
    });
    readers_enter_beside_a_writer: readers_and_a_writer violates EXCLUSION by Before(|record, call, _| {
        if let Call::Acquire(request) = call && request.access == Access::Shared {
            record.holders.clear();
        }
    });
    permits_are_not_counted: permits violates EXCLUSION by Before(|_, call, _| {
        if let Call::Acquire(request) = call {
            request.access = Access::Permits(Permits::new(1, 9).unwrap());
        }
    });
    everybody_is_the_owner: reentrant violates EXCLUSION by Before(|record, call, _| {
        if let Call::Acquire(request) = call {
            record.holders.iter_mut().for_each(|it| it.owner = request.owner.clone());
        }
    });
    an_upgrade_beside_a_reader: conversions violates EXCLUSION by Before(|record, call, _| {
        if let Call::Convert(request) = call {
            record.holders.retain(|it| it.lease == request.lease);
        }
    });
    a_conversion_of_any_fence: conversions violates EXCLUSION by Before(|_, call, _| {
        if let Call::Convert(request) = call {
            request.fence = None;
        }
    });
    a_grant_keeps_the_fence: exclusive violates FENCES by After(|record, call, put| {
        if let Call::Acquire(_) = call {
            put.fence = record.fence;
            put.holders.iter_mut().for_each(|it| it.fence = record.fence);
        }
    });
    an_eviction_keeps_the_fence: exclusive violates FENCES by After(|record, call, put| {
        if let Call::Evict = call {
            put.fence = record.fence;
        }
    });
    an_upgrade_keeps_the_fence: conversions violates FENCES by After(|record, call, put| {
        if let Call::Convert(_) = call {
            put.fence = record.fence;
            put.holders.iter_mut().for_each(|it| it.fence = record.fence);
        }
    });
    the_queue_is_ignored: exclusive violates ORDER by Before(|record, call, now| {
        if let Call::Acquire(request) = call && record.live_holders(*now).next().is_none() {
            request.turn = Turn::Barging;
        }
    });
    readers_pass_a_writer: readers_and_a_writer_in_turn violates ORDER by Before(|_, call, _| {
        if let Call::Acquire(request) = call && request.access == Access::Shared {
            request.turn = Turn::Barging;
        }
    });
    a_done_tick_is_granted: once violates ONCE by Before(|_, call, _| {
        if let Call::Acquire(request) = call {
            request.tick = None;
        }
    });
    a_done_tick_is_forgotten: once violates ONCE by Before(|_, call, _| {
        if let Call::Release(request) = call {
            *request = ReleaseRequest::new(request.key.clone(), request.lease);
        }
    });
    leases_never_expire: exclusive violates DEAD by Before(|record, _, _| {
        record.holders.iter_mut().for_each(|it| it.expires_at = at(99));
    });
    places_count_for_ever: exclusive violates DEAD by Before(|record, _, now| {
        record.expires_at = *now;
        record.waiters.iter_mut().for_each(|it| it.until = *now + TICK);
    });
    the_last_comes_first: exclusive violates FREE by Before(|record, call, _| {
        if let Call::Acquire(_) = call {
            record.waiters.reverse();
        }
    });
    nobody_leaves: exclusive violates PLACES by Before(|_, call, _| {
        if let Call::Leave(it) = call {
            *it = waiter(CLIENTS);
        }
    });
    a_grant_keeps_the_place: exclusive violates PLACES by After(|record, call, put| {
        if let Call::Acquire(_) = call && put.holders != record.holders {
            put.waiters = record.waiters.clone();
        }
    });
}
