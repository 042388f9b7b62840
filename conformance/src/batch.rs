//! Several requests in one call.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;

use super::{
    Clients, LONG, Outcome, Violation, ensure, fresh_key, granted, request, sole_holder, state,
    violation,
};
use leasehold::{
    Key, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, LeaseId, ReleaseAnswer,
        ReleaseRequest,
    },
};

async fn batch(
    store: &Arc<dyn Store>,
    requests: &[BatchRequest],
) -> Result<Vec<BatchAnswer>, Violation> {
    let answers = store.batch(requests).await?;
    ensure!(
        answers.len() == requests.len(),
        "{} requests have {} answers",
        requests.len(),
        answers.len()
    );
    let answers: Result<Vec<_>, _> = answers.into_iter().collect();
    Ok(answers?)
}

fn acquire(request: &AcquireRequest) -> BatchRequest {
    BatchRequest::Acquire(Arc::new(request.clone()))
}

fn release(key: &Key, lease: LeaseId) -> BatchRequest {
    BatchRequest::Release(ReleaseRequest::new(key.clone(), lease))
}

/// The requests of one call are carried out and answered as if each had been sent alone.
pub async fn a_batch_does_what_its_requests_say(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = |name: &str| fresh_key(&format!("batch $ {{}} / {name}"));
    // These exist before the call.
    let held = request(&key("held")?, "a holder", LONG);
    let mine = request(&key("mine")?, "me", LONG);
    let early = request(&key("early")?, "me", LONG);
    let reader = request(&key("shared")?, "a reader", LONG).shared();
    for there in [&held, &mine, &early, &reader] {
        granted(first, there).await?;
    }
    // These are the requests of the call.
    let free = request(&key("free")?, "me", LONG).note("$note");
    let refused = request(&held.key, "me", LONG);
    let other = key("held by another")?;
    let another = request(&other, "another", LONG);
    granted(second, &another).await?;
    let beside = request(&reader.key, "me", LONG).shared();
    let unknown = key("unknown")?;
    let under = LeaseId::random();
    let holds_on = ReleaseRequest::new(early.key.clone(), early.lease).min_hold(LONG, under);
    let requests = [
        acquire(&free),
        acquire(&refused),
        BatchRequest::Release(ReleaseRequest::new(mine.key.clone(), mine.lease).likely_sole()),
        release(&other, LeaseId::random()),
        release(&unknown, LeaseId::random()),
        acquire(&beside),
        BatchRequest::Release(holds_on),
    ];
    let answers = batch(second, &requests).await?;
    for (number, answer) in answers.iter().enumerate() {
        let right = match (number, answer) {
            (0 | 5, BatchAnswer::Acquire(AcquireAnswer::Granted(_))) => true,
            (1, BatchAnswer::Acquire(AcquireAnswer::Held(holder))) => {
                holder.owner() == "a holder" && holder.expires_in() > LONG / 2
            }
            (2 | 6, BatchAnswer::Release(ReleaseAnswer::Released)) => true,
            (3 | 4, BatchAnswer::Release(ReleaseAnswer::NotHeld)) => true,
            _ => false,
        };
        ensure!(right, "{:?} was answered {answer:?}", requests[number]);
    }
    for (request, kept) in [(&free, "$note"), (&held, ""), (&another, "")] {
        let holder = sole_holder(first, &request.key).await?;
        ensure!(
            holder.lease == request.lease && holder.note.as_deref().unwrap_or_default() == kept,
            "{holder:?} holds the key of {request:?}"
        );
    }
    ensure!(
        state(first, &mine.key).await?.is_free(),
        "a lease that was released in a batch holds its key"
    );
    ensure!(
        sole_holder(first, &early.key).await?.lease == under,
        "a minimum hold is over with its batch"
    );
    let readers = state(first, &reader.key).await?.holders;
    ensure!(readers.len() == 2, "{readers:?} share a key");
    ensure!(
        first.inspect(&unknown).await?.is_none(),
        "a request that changes nothing made a document"
    );

    // If the call is repeated, it grants the same leases, and releases nothing.
    let again = batch(second, &requests).await?;
    for number in [0, 5] {
        let (BatchAnswer::Acquire(before), BatchAnswer::Acquire(after)) =
            (&answers[number], &again[number])
        else {
            return violation("an acquire is answered as a release");
        };
        let (AcquireAnswer::Granted(before), AcquireAnswer::Granted(after)) = (before, after)
        else {
            return violation(format!(
                "{:?} was refused the second time",
                requests[number]
            ));
        };
        ensure!(
            before.fence == after.fence,
            "a repeated request was granted anew"
        );
    }
    ensure!(
        again[2] == BatchAnswer::Release(ReleaseAnswer::NotHeld),
        "a lease was released twice"
    );
    Ok(())
}

/// How many keys each of the racing batches asks for.
const RACERS: usize = 100;

/// If several batches ask for the same keys at the same time, only one of them gets each key.
pub async fn racing_batches_share_no_key(clients: &Clients) -> Outcome {
    let name = fresh_key("race of batches")?;
    let key = |number| Key::new(format!("{name} {number}"));
    for round in 0..2 {
        let keys: Vec<_> = (0..RACERS)
            .map(|number| key(round * RACERS + number))
            .collect::<Result<_, _>>()?;
        let race = (0..8).map(|task| {
            let store = clients.of_task(task);
            let ask = |key: &Key| acquire(&request(key, "racer", LONG));
            let requests: Vec<_> = keys.iter().map(ask).collect();
            tokio::spawn(async move { batch(&store, &requests).await })
        });
        let mut winners = vec![0; keys.len()];
        for outcome in join_all(race).await {
            for (winners, answer) in winners.iter_mut().zip(outcome??) {
                if let BatchAnswer::Acquire(AcquireAnswer::Granted(grant)) = answer {
                    ensure!(grant.expires_in() > Duration::ZERO, "{grant:?} is over");
                    *winners += 1;
                }
            }
        }
        ensure!(
            winners.iter().all(|winners| *winners == 1),
            "the keys have {winners:?} winners"
        );
    }
    Ok(())
}
