//! A rule that is wrong in one place violates the property that is about it.

use std::collections::BTreeSet;

use leasehold::store::{Access, LastDone, Permits};

use super::{judges::*, server::Fault, state::*, *};

fn violates(property: &'static str, fault: Fault, mut setting: Setting) {
    setting.fault = fault;
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
    a_lease_expires_a_tick_early: in_turn violates EXCLUSION by |_, record| {
        record.holders.iter_mut().for_each(|it| it.expires_at -= TICK);
    };
    readers_enter_beside_a_writer: conversions violates EXCLUSION by |call, record| if call.terms.access == Access::Shared {
        record.holders.clear();
    };
    permits_are_not_counted: permits violates EXCLUSION by |call, _| {
        call.terms.access = Access::Permits(Permits::new(1, 9).unwrap());
    };
    everybody_is_the_owner: reentrant violates EXCLUSION by |call, record| {
        record.holders.iter_mut().for_each(|it| it.owner = call.terms.owner.clone());
    };
    a_conversion_of_any_fence: conversions violates EXCLUSION by |call, record| {
        let mine = record.holders.iter().find(|it| it.lease == call.terms.lease);
        if let (Ask::Convert(_, fence), Some(mine)) = (&mut call.ask, mine) {
            *fence = mine.fence;
        }
    };
    a_fence_is_forgotten: in_turn violates FENCES by |_, record| record.fence = leasehold::Fence::new(0);
    an_eviction_forgets_the_fence: in_turn violates FENCES by |call, record| if call.ask == Ask::Evict {
        record.fence = leasehold::Fence::new(0);
    };
    readers_pass_a_writer: readers_and_a_writer_in_turn violates ORDER by |call, _| if call.terms.access == Access::Shared {
        call.terms.turn = Turn::Barging;
    };
    an_upgrade_forgets_the_fence: conversions violates FENCES by |call, record| if let Ask::Convert(..) = call.ask {
        record.fence = leasehold::Fence::new(0);
    };
    an_upgrade_beside_a_reader: conversions violates EXCLUSION by |call, record| if let Ask::Convert(..) = call.ask {
        record.holders.retain(|it| it.lease == call.terms.lease);
    };
    a_tick_of_another_is_ones_own: once violates ONCE by |call, record| if let LastDone::Tick(it) = &mut record.done {
        it.lease = call.terms.lease;
    };
    a_done_tick_is_granted: once violates ONCE by |call, _| call.terms.tick = None;
    a_done_tick_is_forgotten: once violates ONCE by |call, _| if let Ask::Release(tick) = &mut call.ask {
        *tick = None;
    };
    places_count_for_ever: in_turn violates DEAD by |call, record| {
        record.expires_at = call.now;
        record.waiters.iter_mut().for_each(|it| it.until = call.now + TICK);
    };
    the_last_comes_first: in_turn violates FREE by |_, record| record.waiters.reverse();
    nobody_leaves: in_turn violates PLACES by |call, _| if let Ask::Leave(it) = &mut call.ask {
        *it = waiter(CLIENTS);
    };
}
