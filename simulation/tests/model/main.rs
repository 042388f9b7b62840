//! The rules of the library in every order of events, by a model checker (stateright).
//!
//! Three clients ask for one key. Each request may be carried out at once, late, more than once or never, and late ones
//! while a later lease of their client exists. A client may forget its lease at any time. It believes in a lease as the
//! library does: from the answer on, until what the answer left of the lease, at most a ttl, has passed since the
//! request was sent, less the margin. In most settings the server's clock steps by the margin, forward and back, and a
//! late request may have the time at which it was sent. Then the rules of `leasehold::rules` decide, nothing else.
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
use state::{KEY, PLACE, TICK, TTL, lease, waiter};
use stateright::{Checker, HasDiscoveries, Model};
use steps::Setting;

/// Clients of one owner that ask for exclusive leases in turn, but for this change.
fn setting(change: fn(usize, AcquireRequest) -> AcquireRequest) -> Setting {
    let (ttl, counts_for) = (TICK * TTL as u32, TICK * PLACE as u32);
    let request = |client| {
        let request = AcquireRequest::exclusive(KEY.clone(), lease(client, 0), "a".into(), ttl);
        let turn = Turn::in_turn(waiter(client), counts_for);
        change(client, request.turn(turn))
    };
    Setting {
        requests: [0, 1, 2].map(request),
        alike: 2,
        converts: false,
        evicts: false,
        odd_clock: true,
        fault: None,
    }
}

/// The same without steps of the clock.
fn steady(change: fn(usize, AcquireRequest) -> AcquireRequest) -> Setting {
    Setting {
        odd_clock: false,
        ..setting(change)
    }
}

fn exclusive() -> Setting {
    Setting {
        evicts: true,
        alike: 3,
        ..setting(|_, it| it)
    }
}

fn barging() -> Setting {
    Setting {
        evicts: true,
        ..setting(|client, it| match client {
            2 => it.turn(Turn::Barging),
            _ => it,
        })
    }
}

fn shared_beside_exclusive(client: usize, it: AcquireRequest) -> AcquireRequest {
    if client == 2 { it } else { it.shared() }
}

fn readers_and_a_writer() -> Setting {
    setting(|client, it| shared_beside_exclusive(client, it.turn(Turn::Behind)))
}

fn readers_and_a_writer_in_turn() -> Setting {
    steady(shared_beside_exclusive)
}

/// Two clients that want one of two permits, and one that wants both.
fn permits() -> Setting {
    steady(|client, it| it.permits([1, 1, 2][client], 2).unwrap())
}

/// Two clients of one owner, and another client.
fn reentrant() -> Setting {
    steady(|client, mut it| {
        it.owner = ["a", "a", "c"][client].into();
        if client == 2 { it } else { it.reentrant() }
    })
}

/// Each client upgrades and downgrades its lease.
fn conversions() -> Setting {
    Setting {
        converts: true,
        ..readers_and_a_writer()
    }
}

/// Two clients that do a tick, and one that does the next.
fn job(client: usize, it: AcquireRequest) -> AcquireRequest {
    it.tick(Tick::counter([1, 1, 2][client]))
}

fn once() -> Setting {
    setting(|client, it| job(client, it.turn(Turn::Behind)))
}

fn once_in_turn() -> Setting {
    steady(job)
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
    ($($setting:ident has $least:literal;)*) => {
        mod every_state {$(
            #[test]
            fn $setting() {
                super::visit(super::$setting(), $least);
            }
        )*}
    };
}

settings! {
    exclusive has 100_000;
    barging has 50_000;
    readers_and_a_writer has 50_000;
    readers_and_a_writer_in_turn has 150_000;
    permits has 100_000;
    reentrant has 50_000;
    conversions has 150_000;
    once has 4_000;
    once_in_turn has 50_000;
}
