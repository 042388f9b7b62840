//! The rules of the library in every order of events, by a model checker (stateright).
//!
//! Three clients ask for one key. Each request may be carried out at once, late, more than once or never, and late ones
//! while a later lease of their client exists. A client may forget its lease at any time. It believes in a lease as the
//! library does: from the answer on, until what the answer left of the lease, at most a ttl, has passed since the
//! request was sent, less the margin. An operator may end all leases at any time. In some settings the server's clock
//! steps by the margin, forward and back, and a late request may have the time at which it was sent. Then the rules of
//! `leasehold::rules` decide, nothing else.
//!
//! A run visits every state. Neither its time nor the number of requests is bounded, because states that differ by age
//! alone are the same (`state.rs`). Bounded are:
//!
//! - the times: a lease lives for two ticks, a place counts for two, and a free key is kept for the queue for one. So
//!   each of them can end first, and be renewed once in between;
//! - the late requests: one at a time, and any others at once while it is late;
//! - the leases of a client: it asks for a new one when the document has none of its old ones. A client that comes back
//!   earlier is to the rules as another client. A late request may bring an old lease back beside a new one;
//! - what is mixed: each setting has one subject. Steps of the clock matter to leases, so the settings that are about
//!   the queue of different modes do without them.
//!
//! Not here: leases in place of others, minimum holds, blocks of fences, clean-up, full lists, and limiters.

mod controls;
mod judges;
mod server;
mod state;
mod steps;

use leasehold::{
    jobs::Tick,
    store::{AcquireRequest, Turn},
};
use state::{TICK, TTL, exclusive, lease, waiter};
use stateright::{Checker, HasDiscoveries, Model};
use steps::Setting;

/// Clients of one owner that ask for exclusive leases in turn, but for this change.
fn setting(change: fn(usize, AcquireRequest) -> AcquireRequest) -> Setting {
    let request = |client| {
        let turn = Turn::in_turn(waiter(client), TICK * TTL as u32);
        change(client, exclusive(lease(client), "a").turn(turn))
    };
    Setting {
        requests: [0, 1, 2].map(request),
        odd_clock: false,
        converts: false,
        fault: |_, _| {},
    }
}

fn two_readers(client: usize, it: AcquireRequest) -> AcquireRequest {
    if client == 2 { it } else { it.shared() }
}

fn job(client: usize, it: AcquireRequest) -> AcquireRequest {
    it.tick(Tick::counter([1, 1, 2][client]))
}

/// Visits every state, and fails if one violates a property. There are at least as many states as `least`, so that a
/// setting in which little happens is no success.
fn visit(setting: Setting, least: usize) {
    let found = HasDiscoveries::AnyFailures;
    let checker = setting.checker().finish_when(found).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{states} states, {} steps", checker.state_count());
    checker.assert_properties();
    assert!(states >= least, "{states} states");
}

macro_rules! settings {
    ($($name:ident has $least:literal: { $($what:ident),* }, $change:expr;)*) => {
        $(fn $name() -> Setting {
            Setting { $($what: true,)* ..setting($change) }
        })*
        mod every_state {$(
            #[test]
            fn $name() {
                super::visit(super::$name(), $least);
            }
        )*}
    };
}

// Each row: a setting, how many states it has at least, what may happen in it, and what is special about each request.
settings! {
    in_turn has 1_000_000: { odd_clock }, |_, it| it;
    barging has 150_000: { odd_clock },
        |client, it| if client == 2 { it.turn(Turn::Barging) } else { it };
    readers_and_a_writer_in_turn has 1_000_000: {}, two_readers;
    // Two clients that want one of two permits, and one that wants both.
    permits has 500_000: {}, |client, it| it.permits([1, 1, 2][client], 2).unwrap();
    // Two clients of one owner, and another client.
    reentrant has 300_000: {}, |client, mut it| {
        it.owner = ["a", "a", "c"][client].into();
        if client == 2 { it } else { it.reentrant() }
    };
    // Two readers and a writer that do not wait. Each of them upgrades and downgrades its lease.
    conversions has 500_000: { odd_clock, converts },
        |client, it| two_readers(client, it.turn(Turn::Behind));
    // Two clients that do a tick, and one that does the next.
    once has 15_000: { odd_clock }, |client, it| job(client, it.turn(Turn::Behind));
    once_in_turn has 400_000: {}, job;
}
