//! What clients, the network, the server and the clocks do.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold::{
    Fence, Mode,
    rules::Write,
    store::{
        AcquireAnswer, AcquireRequest,
        ConvertAnswer::Converted,
        ConvertRequest, Grant, LeaseId, ReleaseAnswer, ReleaseRequest,
        RenewAnswer::{Expired, Renewed, TakenOver},
        RenewRequest,
    },
};
use stateright::{Model, Property};

use super::{
    judges,
    server::{Answer, Call, Fault},
    state::{
        AGE, Ask, CLIENTS, Held, KEY, MARGIN, Request, State, TICK, TTL, at, lease, waiter, whose,
    },
};

/// What may happen.
#[derive(Clone)]
pub struct Setting {
    /// What each client asks for. The lease differs from request to request.
    pub requests: [AcquireRequest; CLIENTS],
    /// So many clients, the first ones, differ by their names only, and so do the others.
    pub alike: usize,
    pub converts: bool,
    pub evicts: bool,
    /// Whether the server's clock steps, and a late request may have the time at which it was sent.
    pub odd_clock: bool,
    pub fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A client sends a request, and it is late. While another one is late, the server carries it out at once.
    Sends(Request),
    /// The late request is carried out, and may be again. The server's time is that of so many ticks ago.
    Arrives(i64),
    /// The late request is carried out no more. If it never was, it is lost.
    Vanishes,
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
        let request = |lease, ask| Request { lease, ask, age: 0 };
        let of = state.clients[client];
        let Some((id, held)) = of.lease else {
            let leave = of.waits.then_some(request(lease(client, 0), Ask::Leave));
            let new = state.unused(client).map(|it| request(it, Ask::Acquire));
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
        asks.map(|ask| request(id, ask)).collect()
    }

    fn call(&self, lease: LeaseId, ask: Ask) -> Call {
        let (key, request) = (KEY.clone(), &self.requests[whose(lease)]);
        let release = ReleaseRequest::new(key.clone(), lease);
        match ask {
            Ask::Acquire => {
                let mut request = request.clone();
                request.lease = lease;
                Call::Acquire(request)
            }
            Ask::Renew => Call::Renew(RenewRequest::new(key, lease, request.ttl)),
            Ask::Upgrade(of) => Call::Convert(ConvertRequest::upgrade(key, lease).of_fence(of)),
            Ask::Downgrade(of) => Call::Convert(ConvertRequest::downgrade(key, lease).of_fence(of)),
            Ask::Release => Call::Release(release),
            Ask::Done => Call::Release(release.done(request.tick.unwrap(), Duration::ZERO)),
            Ask::Leave => Call::Leave(waiter(whose(lease))),
        }
    }

    /// The server carries a request out, and the client hears the answer at once. A client that hears it later or never
    /// believes in no more than this one, and does nothing that this one may not do.
    fn carries_out(&self, state: &mut State, request: Request, time: DateTime<Utc>) {
        let Request { lease, ask, .. } = request;
        let found = state.document.as_ref();
        let mine = found.and_then(|it| it.live_holders(time).find(|it| it.lease == lease));
        let mine = mine.map(|it| it.mode);
        let (write, answer) = self.carry_out(state, self.call(lease, ask), time);
        let wanted = &self.requests[whose(lease)];
        let client = &mut state.clients[whose(lease)];
        match (ask, &answer, mine) {
            (_, Answer::Acquire(AcquireAnswer::Granted(grant)), None) => {
                client.waits = false;
                state.grants(Some(wanted), grant.fence, time);
            }
            (_, Answer::Acquire(AcquireAnswer::Held(_)), _) => {
                client.waits |= wanted.turn.waiter().is_some();
            }
            (Ask::Upgrade(_), Answer::Convert(Converted(grant)), Some(Mode::Shared)) => {
                state.grants(None, grant.fence, time);
            }
            (Ask::Done, Answer::Release(ReleaseAnswer::Released), _) => {
                let done = (wanted.tick.unwrap(), lease);
                let is_again = state.done.is_some_and(|it| it.0 >= done.0 && it != done);
                state.violated = state.violated.or(is_again.then_some(judges::ONCE));
                state.done = Some(done);
            }
            (Ask::Leave, ..) => client.waits = false,
            _ => {}
        }
        let known = &mut state.clients[whose(lease)].lease;
        if let Some((_, held)) = known.as_mut().filter(|it| it.0 == lease) {
            match answer {
                Answer::Acquire(AcquireAnswer::Done(_)) | Answer::Renew(Expired | TakenOver) => {
                    *known = None
                }
                answer => self.hears(held, request, answer),
            }
        }
        state.write(write);
    }

    fn hears(&self, held: &mut Option<Held>, Request { lease, ask, age }: Request, answer: Answer) {
        let left = |grant: Grant| {
            let left = grant.expires_in().as_millis() / TICK.as_millis();
            (left as i64).min(TTL) - MARGIN - age
        };
        match (ask, answer, held) {
            (_, Answer::Acquire(AcquireAnswer::Granted(grant)), held @ None) if left(grant) > 0 => {
                *held = Some(Held {
                    mode: self.requests[whose(lease)].access.mode(),
                    left: left(grant),
                    fence: self.converts.then_some(grant.fence),
                    is_unclear: false,
                });
            }
            (_, Answer::Renew(Renewed(grant)), Some(held)) => {
                held.left = held.left.max(left(grant));
            }
            // The answer to a request that names an earlier fence tells nothing of the lease as it is now.
            (
                Ask::Upgrade(of) | Ask::Downgrade(of),
                Answer::Convert(Converted(grant)),
                Some(held),
            ) if held.fence == Some(of) => match ask {
                Ask::Downgrade(_) => held.is_unclear = false,
                _ if held.is_unclear => {}
                _ => (held.mode, held.fence) = (Mode::Exclusive, Some(grant.fence)),
            },
            _ => {}
        }
    }

    /// Whoever believes in a lease that an operator ends is told so: no rule can prevent that belief.
    fn evicts(&self, state: &mut State) {
        let (write, _) = self.carry_out(state, Call::Evict, at(0));
        if let Write::Put(record) = &write {
            state.grants(None, record.fence, at(0));
            for client in &mut state.clients {
                client.lease = client.lease.filter(|it| it.1.is_none());
            }
        }
        state.write(write);
    }
}

impl State {
    /// What a client does as it sends a request.
    fn sends(&mut self, Request { lease, ask, .. }: Request) {
        let known = &mut self.clients[whose(lease)].lease;
        match (ask, known) {
            (Ask::Acquire, known) => *known = Some((lease, None)),
            (Ask::Release | Ask::Done, known) => *known = None,
            (Ask::Downgrade(_), Some((_, Some(held)))) => {
                (held.mode, held.is_unclear) = (Mode::Shared, true);
            }
            _ => {}
        }
    }

    /// A lease was granted by this request, or upgraded, or all were evicted.
    fn grants(&mut self, request: Option<&AcquireRequest>, fence: Fence, time: DateTime<Utc>) {
        let violated = judges::grant(self, request, fence, time);
        self.violated = self.violated.or(violated);
        self.newest = self.newest.max(Some(fence));
    }

    fn write(&mut self, write: Write) {
        if let Write::Put(record) = write {
            self.document = Some(record);
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
        if let Some(Request { ask, age, .. }) = &mut self.late {
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
        for client in 0..CLIENTS {
            actions.extend(self.asks(state, client).into_iter().map(Action::Sends));
            actions.extend(state.clients[client].lease.map(|_| Action::Forgets(client)));
        }
        if let Some(Request { age, .. }) = state.late {
            actions.extend([Action::Arrives(0), Action::Vanishes]);
            actions.extend((self.odd_clock && age > 0).then_some(Action::Arrives(age)));
        }
        actions.extend(self.evicts.then_some(Action::Evicts));
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
