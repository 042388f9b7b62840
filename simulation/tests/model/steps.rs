//! What clients, the network, the server and the clocks do.

use std::time::Duration;

use leasehold::{
    Mode,
    rules::Write,
    store::{AcquireRequest, ConvertRequest, Grant, LockRecord, ReleaseRequest, RenewRequest},
};
use stateright::{Model, Property};

use super::{
    judges,
    server::{Answer, Call, Fault, carry_out},
    state::{
        AGE, Ask, CLIENTS, Document, Held, KEY, MARGIN, Request, State, TICK, TTL, at, fence,
        lease, number, waiter,
    },
};

/// What may happen.
#[derive(Clone)]
pub struct Setting {
    /// What each client asks for. The lease differs from request to request.
    pub requests: [AcquireRequest; CLIENTS],
    /// The clients in groups that differ by their names only.
    pub alike: &'static [&'static [usize]],
    pub converts: bool,
    pub evicts: bool,
    /// Whether the server's clock steps, and a late request may have the time at which it was sent.
    pub odd_clock: bool,
    /// How many requests may be late at once. Any number of others may be carried out meanwhile.
    pub late: usize,
    pub fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A client sends a request, and the server carries it out at once.
    Asks(Request),
    /// A client sends a request, and it is late.
    Sends(Request),
    /// A late request is carried out, and may be again.
    Arrives { index: usize, is_stale: bool },
    /// A late request is carried out no more. If it never was, it is lost.
    Vanishes(usize),
    /// A client ends, or gives up without a request.
    Forgets(usize),
    /// An operator ends all leases.
    Evicts,
    /// The server's clock steps forward, or back.
    Steps,
    /// A tick passes.
    Passes,
}

impl Setting {
    fn asks(&self, state: &State, client: usize) -> Vec<Request> {
        let request = |name, ask| Request { name, ask, age: 0 };
        let Some((id, held)) = state.clients[client].lease else {
            let leave = state.clients[client]
                .waits
                .then_some(request((client, 0), Ask::Leave));
            let new = state.unused(client).map(|name| request(name, Ask::Acquire));
            return new.into_iter().chain(leave).collect();
        };
        let (first, release) = match (held, self.requests[client].tick) {
            (None, _) => (Ask::Acquire, Ask::Release),
            (_, None) => (Ask::Renew, Ask::Release),
            (_, Some(_)) => (Ask::Renew, Ask::Done),
        };
        // An upgrade that overtakes a downgrade finds nothing to do, and the downgrade then undoes it. So a client
        // waits for the answer to its downgrade.
        let convert = held.filter(|it| !it.is_unclear);
        let convert = convert.and_then(|it| match it.mode {
            Mode::Exclusive => Some(Ask::Downgrade(it.fence?)),
            _ => Some(Ask::Upgrade(it.fence?)),
        });
        let asks = [first, release].into_iter().chain(convert);
        asks.map(|ask| request((client, id), ask)).collect()
    }

    fn call(&self, Request { name, ask, .. }: Request) -> Call {
        let (key, lease, ttl) = (KEY.clone(), lease(name), TICK * TTL as u32);
        match ask {
            Ask::Acquire => {
                let mut request = self.requests[name.0].clone();
                request.lease = lease;
                Call::Acquire(request)
            }
            Ask::Renew => Call::Renew(RenewRequest::new(key, lease, ttl)),
            Ask::Upgrade(of) => {
                Call::Convert(ConvertRequest::upgrade(key, lease).of_fence(fence(of)))
            }
            Ask::Downgrade(of) => {
                Call::Convert(ConvertRequest::downgrade(key, lease).of_fence(fence(of)))
            }
            Ask::Release => Call::Release(ReleaseRequest::new(key, lease)),
            Ask::Done => {
                let tick = self.requests[name.0].tick.unwrap();
                Call::Release(ReleaseRequest::new(key, lease).done(tick, Duration::ZERO))
            }
            Ask::Leave => Call::Leave(waiter(name.0)),
        }
    }

    /// What a client does as it sends a request.
    fn sends(&self, state: &mut State, Request { name, ask, .. }: Request) {
        let known = &mut state.clients[name.0].lease;
        match (ask, known) {
            (Ask::Acquire, known) => *known = Some((name.1, None)),
            (Ask::Release | Ask::Done, known) => *known = None,
            (Ask::Downgrade(_), Some((_, Some(held)))) => {
                (held.mode, held.is_unclear) = (Mode::Shared, true);
            }
            _ => {}
        }
    }

    /// The server carries a request out, and the client hears the answer at once. A client that hears it later or never
    /// believes in no more than this one, and does nothing that this one may not do.
    fn carries_out(&self, state: &mut State, request: Request, is_stale: bool) {
        let Request { name, ask, age } = request;
        let time = at(if is_stale { -age } else { 0 });
        let before = state.document.as_ref().map(|it| it.record(self));
        let (write, answer) = carry_out(self.fault, before.as_ref(), self.call(request), time);
        let live = before.iter().flat_map(|it| it.live_holders(time));
        let mine = live
            .filter(|it| it.lease == lease(name))
            .map(|it| it.mode)
            .next();
        if let (Ask::Acquire, Answer::Granted(_), None)
        | (Ask::Upgrade(_), Answer::Granted(_), Some(Mode::Shared)) = (ask, answer, mine)
            && let Answer::Granted(grant) = answer
        {
            let call = self.call(request);
            let violated = judges::grant(state, before.as_ref(), &call, grant, time);
            state.violated = state.violated.or(violated);
            state.newest = state.newest.max(Some(number(grant.fence)));
        }
        if let (Ask::Done, Answer::Done, Some(tick)) = (ask, answer, self.requests[name.0].tick) {
            let tick = tick.number();
            let is_again = state
                .done
                .is_some_and(|it| it.0 >= tick && it != (tick, name));
            state.violated = state.violated.or(is_again.then_some(judges::ONCE));
            state.done = Some((tick, name));
        }
        let it = &mut state.clients[name.0];
        match (ask, answer, mine) {
            (Ask::Acquire, Answer::Refused, _) => {
                it.waits |= self.requests[name.0].turn.waiter().is_some()
            }
            (Ask::Acquire, Answer::Granted(_), None) | (Ask::Leave, ..) => it.waits = false,
            _ => {}
        }
        if let Some((_, held)) = it.lease.as_mut().filter(|it| it.0 == name.1) {
            match (ask, answer) {
                (Ask::Acquire | Ask::Renew, Answer::Ended) => it.lease = None,
                _ => self.hears(held, request, answer),
            }
        }
        state.write(write);
    }

    fn hears(&self, held: &mut Option<Held>, Request { name, ask, age }: Request, answer: Answer) {
        let Answer::Granted(grant) = answer else {
            return;
        };
        let left = |grant: Grant| {
            let left = grant.expires_in().as_millis() / TICK.as_millis();
            (left as i64).min(TTL) - MARGIN - age
        };
        match (ask, held) {
            (Ask::Acquire, held @ None) if left(grant) > 0 => {
                let mode = self.requests[name.0].access.mode();
                let fence = self.converts.then(|| number(grant.fence));
                *held = Some(Held {
                    mode,
                    left: left(grant),
                    fence,
                    is_unclear: false,
                });
            }
            (Ask::Renew, Some(held)) => held.left = held.left.max(left(grant)),
            // The answer to a request that names an earlier fence tells nothing of the lease as it is now.
            (Ask::Downgrade(of), Some(held)) if held.fence == Some(of) => held.is_unclear = false,
            (Ask::Upgrade(of), Some(held)) if held.fence == Some(of) && !held.is_unclear => {
                (held.mode, held.fence) = (Mode::Exclusive, Some(number(grant.fence)));
            }
            _ => {}
        }
    }

    /// Whoever believes in a lease that an operator ends is told so: no rule can prevent that belief.
    fn evicts(&self, state: &mut State) {
        let before = state.document.as_ref().map(|it| it.record(self));
        let (write, _) = carry_out(self.fault, before.as_ref(), Call::Evict, at(0));
        if let Write::Put(LockRecord { fence, .. }) = &write {
            let is_wrong = Some(number(*fence)) <= state.newest;
            state.violated = state.violated.or(is_wrong.then_some(judges::FENCES));
            state.newest = state.newest.max(Some(number(*fence)));
            for client in &mut state.clients {
                client.lease = client.lease.filter(|it| it.1.is_none());
            }
        }
        state.write(write);
    }
}

impl State {
    fn write(&mut self, write: Write) {
        if let Write::Put(record) = write {
            self.document = Some(Document::read(&record));
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
        for Request { ask, age, .. } in &mut self.late {
            let matters = !matches!(ask, Ask::Release | Ask::Done | Ask::Leave);
            *age = if matters { (*age + 1).min(AGE) } else { 0 };
        }
    }
}

impl Model for Setting {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default().normalised(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // While there is room for another late request, one that is carried out at once is one of them: it is sent, it
        // arrives, and it vanishes.
        let is_full = state.late.len() >= self.late;
        let how = if is_full { Action::Asks } else { Action::Sends };
        for client in 0..CLIENTS {
            actions.extend(self.asks(state, client).into_iter().map(how));
            actions.extend(state.clients[client].lease.map(|_| Action::Forgets(client)));
        }
        for (index, request) in state.late.iter().enumerate() {
            actions.push(Action::Arrives {
                index,
                is_stale: false,
            });
            let stale = Action::Arrives {
                index,
                is_stale: true,
            };
            actions.extend((self.odd_clock && request.age > 0).then_some(stale));
            actions.push(Action::Vanishes(index));
        }
        actions.extend(self.evicts.then_some(Action::Evicts));
        actions.extend(self.odd_clock.then_some(Action::Steps));
        actions.push(Action::Passes);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Asks(request) => {
                self.sends(&mut state, request);
                self.carries_out(&mut state, request, false);
            }
            Action::Sends(request) => {
                self.sends(&mut state, request);
                state.late.push(request);
            }
            Action::Arrives { index, is_stale } => {
                self.carries_out(&mut state, last.late[index], is_stale)
            }
            Action::Vanishes(index) => drop(state.late.remove(index)),
            Action::Forgets(client) => state.clients[client].lease = None,
            Action::Evicts => self.evicts(&mut state),
            Action::Steps => {
                state.clock(if last.is_ahead { -MARGIN } else { MARGIN });
                state.is_ahead = !last.is_ahead;
            }
            Action::Passes => state.passes(),
        }
        Some(state.normalised(self))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        judges::all()
    }
}
