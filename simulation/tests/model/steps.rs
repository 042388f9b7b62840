//! What clients, the network, the server and the clocks do.

use chrono::{DateTime, Utc};
use leasehold::{
    Fence, Holder, Mode,
    rules::Write,
    store::{AcquireRequest, Conversion, LeaseId, LockRecord},
};
use stateright::{Model, Property};

use super::{
    judges,
    server::{self, Call, Fault},
    state::*,
};

/// What may happen.
pub struct Setting {
    /// What each client asks for. The lease differs from request to request.
    pub requests: [AcquireRequest; CLIENTS],
    /// Whether the server's clock steps, and a late request may have the time at which it was sent.
    pub odd_clock: bool,
    pub converts: bool,
    pub fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A request is sent, and it is late. While another one is late, the server carries it out at once.
    Sends(Request),
    /// The late request is carried out, and may be again. The server's time is that of so many ticks ago.
    Arrives(i64),
    /// The late request is carried out no more. If it never was, it is lost.
    Vanishes,
    /// A client ends, or gives up without a request.
    Forgets(usize),
    /// The server's clock steps forward, or back.
    Steps,
    /// A tick passes.
    Passes,
}

impl Setting {
    fn asks(&self, state: &State) -> Vec<(LeaseId, Ask)> {
        let mut asks = vec![(old(0), Ask::Evict)];
        for (client, (of, terms)) in state.clients.iter().zip(&self.requests).enumerate() {
            match of.lease {
                None => {
                    // It may have a new lease if the document has none of its old ones.
                    let mut holders = state.document.holders.iter();
                    let is_new = !holders.any(|it| whose(it.lease) == client);
                    asks.extend(is_new.then_some((terms.lease, Ask::Acquire)));
                    let leave = (old(client), Ask::Leave(waiter(client)));
                    asks.extend(of.waits.then_some(leave));
                }
                Some((id, None)) => asks.extend([(id, Ask::Acquire), (id, Ask::Release(None))]),
                Some((id, Some(held))) => {
                    asks.extend([(id, Ask::Renew), (id, Ask::Release(terms.tick))]);
                    let mut both = [Conversion::Upgrade, Conversion::Downgrade].into_iter();
                    let other = both.find(|it| it.mode() != held.mode).zip(held.fence);
                    asks.extend(other.map(|(it, of)| (id, Ask::Convert(it, of))));
                }
            }
        }
        asks
    }

    pub fn carry_out(&self, state: &State, call: &Call) -> (Write, bool) {
        let (mut call, mut found) = (call.clone(), state.document.clone());
        (self.fault)(&mut call, &mut found);
        server::carry_out(call, state.newest.map(|_| &found))
    }

    /// The server carries a request out, and the client hears the answer at once. A client that hears it later or never
    /// believes in no more than this one, and does nothing that this one may not do.
    fn carries_out(&self, state: &mut State, sent: Request, now: DateTime<Utc>) {
        let (ask, lease, client) = (sent.ask, sent.lease, whose(sent.lease));
        let mut terms = self.requests[client].clone();
        terms.lease = lease;
        let call = Call { ask, terms, now };
        let (write, answer) = self.carry_out(state, &call);
        let found = state.document.clone();
        if let Write::Put(record) = write {
            state.document = record;
        }
        let holder = |it: &LockRecord| it.live_holders(now).find(|it| it.lease == lease).cloned();
        let (before, after) = (holder(&found), holder(&state.document));
        let fence = after.as_ref().map(|it| it.fence);
        match (ask, answer, before.map(|it| it.mode)) {
            (Ask::Acquire, true, None) => {
                judges::grant(state, &found, &call, fence);
                state.clients[client].waits = false;
            }
            (Ask::Acquire, false, _) => state.clients[client].waits = true,
            (Ask::Convert(Conversion::Upgrade, _), true, Some(Mode::Shared)) => {
                judges::rising(state, fence);
            }
            (Ask::Release(Some(it)), true, of) => judges::done(state, it, client, of.is_some()),
            (Ask::Leave(_), ..) => state.clients[client].waits = false,
            (Ask::Evict, true, _) => {
                judges::rising(state, Some(state.document.fence));
                // Whoever believes in a lease that an operator ends is told so: no rule can prevent that belief.
                for client in &mut state.clients {
                    client.lease = client.lease.filter(|it| it.1.is_none());
                }
            }
            _ => {}
        }
        let known = state.clients[client].lease.as_mut();
        let known = known.filter(|it| it.0 == lease && answer);
        if let (Some((_, held)), Some(holder)) = (known, after) {
            self.hears(held, sent, &holder, now);
        }
    }

    fn hears(&self, held: &mut Option<Held>, sent: Request, it: &Holder, now: DateTime<Utc>) {
        let left = (it.expires_at - now).num_seconds() / TICK.as_secs() as i64;
        let left = left.min(TTL) - MARGIN - sent.age;
        match (sent.ask, held) {
            (Ask::Acquire, held @ None) if left > 0 => {
                let (mode, fence) = (it.mode, self.converts.then_some(it.fence));
                *held = Some(Held { mode, left, fence });
            }
            (Ask::Renew, Some(held)) => held.left = held.left.max(left),
            // The answer to a request that names an earlier fence tells nothing of the lease as it is now.
            (Ask::Convert(Conversion::Upgrade, of), Some(held)) if held.fence == Some(of) => {
                (held.mode, held.fence) = (it.mode, Some(it.fence));
            }
            // It has not believed in an exclusive lease since it asked for the downgrade.
            (Ask::Convert(Conversion::Downgrade, _), Some(held)) => held.fence = Some(it.fence),
            _ => {}
        }
    }
}

impl State {
    /// What a client does as it sends a request.
    fn sends(&mut self, Request { lease, ask, .. }: Request) {
        match (ask, &mut self.clients[whose(lease)].lease) {
            (Ask::Acquire, known @ None) => {
                // So a request that is late for its lease before is for an old one now.
                let late = self.late.iter_mut().filter(|it| it.lease == lease);
                late.for_each(|it| it.lease = old(whose(lease)));
                *known = Some((lease, None));
            }
            (Ask::Release(_), known) => *known = None,
            (Ask::Convert(Conversion::Downgrade, _), Some((_, Some(held)))) => {
                (held.mode, held.fence) = (Mode::Shared, None);
            }
            _ => {}
        }
    }

    fn passes(&mut self) {
        self.clock(1);
        for client in &mut self.clients {
            if let Some((_, Some(held))) = &mut client.lease {
                held.left -= 1;
                client.lease = client.lease.filter(|it| it.1.is_some_and(|it| it.left > 0));
            }
        }
        if let Some(late) = &mut self.late {
            let matters = !matches!(late.ask, Ask::Release(_) | Ask::Leave(_) | Ask::Evict);
            late.age = if matters { AGE.min(late.age + 1) } else { 0 };
        }
    }
}

impl Model for Setting {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let key = self.requests[0].key.clone();
        let first = State {
            document: LockRecord::new(key, Fence::new(0), Vec::new(), at(0)),
            clients: [Client::default(); CLIENTS],
            late: None,
            is_ahead: false,
            newest: None,
            done: None,
            violated: None,
        };
        vec![first.normalised()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let asks = self.asks(state).into_iter();
        actions.extend(asks.map(|(lease, ask)| Action::Sends(Request { lease, ask, age: 0 })));
        actions.extend((0..CLIENTS).map(Action::Forgets));
        if let Some(Request { age, .. }) = state.late {
            actions.extend([Action::Arrives(0), Action::Vanishes]);
            actions.extend((self.odd_clock && age > 0).then_some(Action::Arrives(age)));
        }
        actions.extend(self.odd_clock.then_some(Action::Steps));
        actions.push(Action::Passes);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            // While there is room for a late request, one that is carried out at once is the late one: it is sent, it
            // arrives, and it vanishes.
            Action::Sends(request) => {
                state.sends(request);
                match last.late {
                    None => state.late = Some(request),
                    Some(_) => self.carries_out(&mut state, request, at(0)),
                }
            }
            Action::Arrives(ago) => self.carries_out(&mut state, last.late?, at(-ago)),
            Action::Vanishes => state.late = None,
            Action::Forgets(client) => state.clients[client].lease = None,
            Action::Steps => {
                state.clock(if last.is_ahead { -MARGIN } else { MARGIN });
                state.is_ahead = !last.is_ahead;
            }
            Action::Passes => state.passes(),
        }
        Some(state.normalised())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        judges::all()
    }
}
