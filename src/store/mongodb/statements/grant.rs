//! The rule of an acquire, as an update pipeline of MongoDB.
//!
//! The statement has three [forms](Form). The short one is for a key that is likely to be free. It refuses until all
//! places are over, and takes no place. So a client that sends nothing else is granted a free key then. The second one
//! is for a process that has the first place, and refuses if another process has it. If the rule says something else,
//! the caller sends the full form.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};

use super::{
    done,
    expressions::{
        cleanup_at, clock_has, from_now, is_below_last_fence, is_free, is_live, is_new,
        last_of_next, lease_ids, literal, lock, make_sense, replace_by_all, replace_if, with,
    },
    turn,
};
use crate::{
    messages::{AcquireRequest, InTurn, OwnLeases, Turn},
    model::{Access, FENCES_PER_MILLI, LeaseId, MAX_HOLDERS},
};

/// A form of the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// It refuses until all places are over.
    Short,
    /// It refuses if another process has the first place.
    First,
    /// It follows the rule of the queue.
    Full,
}

/// Grants the lease if no live holder conflicts with it, and no waiting process comes first. Needs an upsert.
pub(crate) fn acquire(request: &AcquireRequest, form: Form, retention: Duration) -> Vec<Document> {
    let queue = QueueState::of(request, form);
    let statement = match request.access {
        Access::Exclusive if do_own_conflict(request) && queue != QueueState::Followed => {
            exclusive(request, queue, retention)
        }
        _ => beside(request, queue, retention),
    };
    done::if_to_be_done(statement, request.tick)
}

/// How the statement treats the waiting processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    /// The request comes before all of them.
    Ignored,
    /// The request is refused until all places are over.
    Over,
    /// The request is refused if a process waits, unless the first place is that of this process.
    First(LeaseId),
    /// The request is granted or refused, and takes a place, by the rule.
    Followed,
}

impl QueueState {
    fn of(request: &AcquireRequest, form: Form) -> Self {
        match (request.turn, form) {
            (Turn::Barging, _) => Self::Ignored,
            (Turn::InTurn(InTurn { waiter, .. }), Form::First) => Self::First(waiter),
            (_, Form::Short | Form::First) => Self::Over,
            (_, Form::Full) => Self::Followed,
        }
    }

    /// Whether the queue lets the request be granted; `None` if the statement ignores the queue.
    fn is_its_turn(self) -> Option<Document> {
        match self {
            Self::Ignored => None,
            Self::Over => Some(turn::all_places_are_over()),
            Self::First(waiter) => Some(turn::comes_first(waiter)),
            Self::Followed => Some(turn::is_its_turn()),
        }
    }
}

/// Grants the lease if the key has no live holder.
fn exclusive(request: &AcquireRequest, queue: QueueState, retention: Duration) -> Vec<Document> {
    let mut free = vec![is_free(), is_below_last_fence(request.fences)];
    free.extend(queue.is_its_turn());
    let free = doc! { "$or": [{ "$and": free }, is_new(&request.key)] };
    let free = doc! { "$and": [free, clock_has(request.fences)] };
    let lease = request.lease.to_string();
    replace_if(free, sole(request, lease.into(), queue, retention))
}

/// Whether a request may be granted by one statement with others: the [short form](Form::Short) of its statement grants
/// an exclusive lease, and does nothing else.
pub(crate) fn is_plain(request: &AcquireRequest) -> bool {
    let is_exclusive = request.access == Access::Exclusive && do_own_conflict(request);
    is_exclusive && request.turn != Turn::Barging && request.tick.is_none()
}

/// Whether two requests differ in nothing but their keys, their leases and their places.
pub(crate) fn are_alike(one: &AcquireRequest, other: &AcquireRequest) -> bool {
    let are_as_long = one.ttl == other.ttl && one.fences == other.fences;
    are_as_long && one.owner == other.owner && one.note == other.note
}

/// Grants each of these requests its key on the same terms, if the key has a document, no live holder, and no place that
/// is not over. The requests are [plain](is_plain) and [alike](are_alike).
///
/// The server parses one statement instead of many. It finds the lease of a key in a constant list, for which it has a
/// hash table.
pub(crate) fn acquire_together(
    terms: &AcquireRequest,
    requests: &[&AcquireRequest],
    retention: Duration,
) -> Document {
    let keys: Vec<_> = requests.iter().map(|it| it.key.as_str()).collect();
    let leases: Vec<_> = requests.iter().map(|it| it.lease.to_string()).collect();
    let place = doc! { "$indexOfArray": [{ "$literal": &keys }, "$_id"] };
    let lease = doc! { "$arrayElemAt": [leases, place] };
    let free = vec![
        is_free(),
        is_below_last_fence(terms.fences),
        turn::all_places_are_over(),
        clock_has(terms.fences),
    ];
    let granted = sole(terms, lease.into(), QueueState::Over, retention);
    doc! {
        "q": { "_id": { "$in": keys } },
        "u": replace_if(doc! { "$and": free }, granted),
        "multi": true,
    }
}

/// The document of a lock with this lease as its sole holder, on the terms of the request.
fn sole(request: &AcquireRequest, lease: Bson, queue: QueueState, retention: Duration) -> Document {
    let mut held = doc! {
        "lease": lease,
        "owner": literal(&request.owner),
        "acquired_at": "$$NOW",
        "expires_at": from_now(request.ttl),
    };
    if let Some(note) = &request.note {
        held.insert("note", literal(note));
    }
    held.extend(waiters(request, queue));
    lock(
        last_of_next(request.fences),
        kept_until(request, retention),
        held,
    )
}

/// The clean-up date after a grant. It is computed from the fence before the grant, so the fences that the grant takes
/// beyond the next one are added.
fn kept_until(request: &AcquireRequest, retention: Duration) -> Document {
    let more = i64::from(request.fences.get() - 1) / FENCES_PER_MILLI;
    let more = Duration::from_millis(more.unsigned_abs());
    cleanup_at("$$NOW", request.ttl.saturating_add(more), retention)
}

/// The list of waiting processes after a grant, if the statement changes it.
fn waiters(request: &AcquireRequest, queue: QueueState) -> Option<(String, Bson)> {
    let left = match queue {
        QueueState::Ignored => turn::leave(request.turn.waiter()?).into(),
        QueueState::Over => Bson::from("$$REMOVE"),
        QueueState::First(_) => {
            request.turn.waiter()?;
            turn::leave_first_place().into()
        }
        QueueState::Followed => turn::leave_place(request).into(),
    };
    Some(("waiters".to_owned(), left))
}

/// Grants the lease if the live holders leave room for it.
///
/// Only this statement checks the number of holders: after a grant of [`exclusive`] there is one holder.
fn beside(request: &AcquireRequest, queue: QueueState, retention: Duration) -> Vec<Document> {
    let known = doc! { "$and": [is_below_last_fence(request.fences), make_sense("$$all")] };
    let known = doc! { "$or": [known, is_new(&request.key)] };
    let live = doc! { "$cond": [
        { "$and": [known, clock_has(request.fences)] },
        { "$filter": { "input": "$$all", "cond": is_live() } },
        Bson::Null,
    ] };
    let mine = doc! { "$in": [request.lease.to_string(), "$$live.lease"] };
    let place = doc! { "$lt": [{ "$size": "$$live" }, MAX_HOLDERS as i64] };
    let room = doc! { "$and": [{ "$not": [mine] }, place, has_room(request)] };
    // A new document has room for any request.
    let room = doc! { "$or": [is_new(&request.key), room] };
    let mut free = vec![doc! { "$isArray": "$$live" }, room];
    free.extend(queue.is_its_turn());
    let free = doc! { "$and": free };
    let expires_at = from_now(request.ttl);
    // The holders that stay.
    let (kept, name) = match &request.own_leases {
        OwnLeases::Conflict | OwnLeases::Beside => (None, "$$live"),
        OwnLeases::TakenOver(_) => (Some(without_own(request)), "$$kept"),
    };
    let expiries = format!("{name}.expires_at");
    let latest = doc! { "$max": [{ "$max": expiries }, expires_at.clone()] };
    let mut held = doc! {
        "holders": { "$concatArrays": [name, [holder(request, expires_at)]] },
        "expires_at": latest,
    };
    held.extend(waiters(request, queue));
    let granted = lock(
        doc! { "$max": ["$fence", "$$fence"] },
        // The clean-up date includes the expiries of the other holders already, and never goes down.
        kept_until(request, retention),
        held,
    );
    let granted = with("fence", fence(request), granted);
    let granted = match request.access {
        Access::Exclusive => {
            let nobody = doc! { "$eq": [name, []] };
            let lease = request.lease.to_string();
            let sole = sole(request, lease.into(), queue, retention);
            doc! { "$cond": [nobody, sole, granted] }
        }
        Access::Shared | Access::Permits(_) => granted,
    };
    let granted = match kept {
        Some(kept) => with("kept", kept, granted),
        None => granted,
    };
    let decision = if queue == QueueState::Followed {
        in_turn(request, free, granted)
    } else {
        doc! { "$cond": [free, granted, "$$ROOT"] }
    };
    replace_by_all(with("live", live, decision))
}

/// The document after a request whose process may take a place in the queue. The places are evaluated once.
fn in_turn(request: &AcquireRequest, free: Document, granted: Document) -> Document {
    let decision = match turn::take_place(request) {
        None => doc! { "$cond": [free, granted, "$$ROOT"] },
        Some(refused) => {
            let mine = doc! { "$in": [request.lease.to_string(), "$$live.lease"] };
            let waits = doc! { "$and": [{ "$isArray": "$$live" }, { "$not": [mine] }] };
            doc! { "$switch": {
                "branches": [
                    { "case": free, "then": granted },
                    { "case": waits, "then": refused },
                ],
                "default": "$$ROOT",
            } }
        }
    };
    let decision = with("before", turn::before(request), decision);
    with("places", turn::places(), decision)
}

/// Whether the live holders leave room for the request.
fn has_room(request: &AcquireRequest) -> Document {
    let others: Bson = if do_own_conflict(request) {
        "$$live".into()
    } else {
        without_own(request).into()
    };
    let of_the_same_mode = doc! { "$allElementsTrue": { "$map": {
        "input": others.clone(),
        "in": { "$eq": ["$$this.mode", request.access.mode().as_str()] },
    } } };
    match request.access {
        Access::Exclusive => doc! { "$eq": [others, []] },
        Access::Shared => of_the_same_mode,
        Access::Permits(permits) => {
            let left = permits.of() - permits.n();
            // A sum that does not fit a long becomes a double, which is greater than any long.
            let taken = doc! { "$sum": { "$map": { "input": others, "in": "$$this.permits" } } };
            doc! { "$and": [of_the_same_mode, { "$lte": [taken, left] }] }
        }
    }
}

/// The fence of the grant: the last of those that it takes, or for a reentrant request the one that its owner has
/// already.
fn fence(request: &AcquireRequest) -> Document {
    let next = last_of_next(request.fences);
    if !request.is_reentrant() {
        return next;
    }
    let own = doc! { "$map": {
        "input": "$$live",
        "in": { "$cond": [is_own(request), { "$ifNull": ["$$this.fence", 0_i64] }, Bson::Null] },
    } };
    doc! { "$ifNull": [{ "$max": own }, next] }
}

/// The live holders that are none of [those of the owner](is_own).
fn without_own(request: &AcquireRequest) -> Document {
    doc! { "$filter": { "input": "$$live", "cond": { "$not": [is_own(request)] } } }
}

/// Whether live leases of the same owner conflict with the request.
fn do_own_conflict(request: &AcquireRequest) -> bool {
    request.own_leases == OwnLeases::Conflict
}

/// Whether a holder is one of the leases of its owner that do not conflict with the request.
fn is_own(request: &AcquireRequest) -> Document {
    match &request.own_leases {
        OwnLeases::TakenOver(leases) => doc! { "$in": ["$$this.lease", lease_ids(leases)] },
        OwnLeases::Conflict | OwnLeases::Beside => {
            doc! { "$eq": ["$$this.owner", literal(&request.owner)] }
        }
    }
}

/// The lease as one of several holders.
fn holder(request: &AcquireRequest, expires_at: Document) -> Document {
    let mut holder = doc! {
        "lease": request.lease.to_string(),
        "owner": literal(&request.owner),
        "mode": request.access.mode().as_str(),
        "permits": request.access.permits(),
        "fence": "$$fence",
        "acquired_at": "$$NOW",
        "expires_at": expires_at,
    };
    if let Some(note) = &request.note {
        holder.insert("note", literal(note));
    }
    holder
}
