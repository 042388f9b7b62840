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

use leasehold::store::{Access, Permits};
use stateright::{Checker, HasDiscoveries, Model};
use steps::{Line, Setting, Wish};

const EXCLUSIVE: Wish = Wish {
    access: Access::Exclusive,
    line: Line::InTurn,
    reentrant: false,
    tick: None,
};
const SHARED: Wish = Wish {
    access: Access::Shared,
    ..EXCLUSIVE
};
const BEHIND: Wish = Wish {
    line: Line::Behind,
    ..EXCLUSIVE
};
const READER: Wish = Wish {
    line: Line::Behind,
    ..SHARED
};
const TWO: &[&[usize]] = &[&[0, 1], &[2]];

fn setting(wishes: [Wish; 3], alike: &'static [&'static [usize]]) -> Setting {
    Setting {
        wishes,
        owners: ["a", "b", "c"],
        alike,
        converts: false,
        evicts: false,
        odd_clock: true,
        late: 1,
        fault: None,
    }
}

/// Processes that wait for an exclusive lease.
fn exclusive() -> Setting {
    Setting {
        evicts: true,
        ..setting([EXCLUSIVE; 3], &[&[0, 1, 2]])
    }
}

/// One of them does not wait in turn.
fn barging() -> Setting {
    let barging = Wish {
        line: Line::Barging,
        ..EXCLUSIVE
    };
    Setting {
        evicts: true,
        ..setting([EXCLUSIVE, EXCLUSIVE, barging], TWO)
    }
}

fn readers_and_a_writer() -> Setting {
    setting([READER, READER, BEHIND], TWO)
}

fn readers_and_a_writer_in_turn() -> Setting {
    Setting {
        odd_clock: false,
        ..setting([SHARED, SHARED, EXCLUSIVE], TWO)
    }
}

fn permits() -> Setting {
    let permits = |n| Wish {
        access: Access::Permits(Permits::new(n, 2).unwrap()),
        ..EXCLUSIVE
    };
    Setting {
        odd_clock: false,
        ..setting([permits(1), permits(1), permits(2)], TWO)
    }
}

/// Two clients of one owner, and another client.
fn reentrant() -> Setting {
    let reentrant = Wish {
        reentrant: true,
        ..EXCLUSIVE
    };
    Setting {
        owners: ["a", "a", "c"],
        odd_clock: false,
        ..setting([reentrant, reentrant, EXCLUSIVE], TWO)
    }
}

/// Each client upgrades and downgrades its lease.
fn conversions() -> Setting {
    Setting {
        converts: true,
        ..readers_and_a_writer()
    }
}

/// Two clients that do a tick, and one that does the next.
fn once() -> Setting {
    let job = |tick| Wish {
        tick: Some(tick),
        ..BEHIND
    };
    setting([job(1), job(1), job(2)], TWO)
}

/// The same, in turn.
fn once_in_turn() -> Setting {
    let in_turn = |wish| Wish {
        line: Line::InTurn,
        ..wish
    };
    Setting {
        wishes: once().wishes.map(in_turn),
        odd_clock: false,
        ..once()
    }
}

/// Visits every state, and fails if one violates a property. There are at least as many states as `least`, so that a
/// setting in which little happens is no success.
fn visit(setting: Setting, least: usize) {
    let checker = setting.checker();
    let checker = checker
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
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
