//! The bound on the holders of one key.

use super::{
    Clients, LONG, Outcome, SHORT, ensure, fresh_key, granted, no_tick, refused, request, state,
    violation,
};
use leasehold::{
    Error, Held,
    limits::MAX_HOLDERS,
    rules,
    store::{AcquireAnswer, AcquireRequest, ReleaseRequest},
};

/// How many tasks ask at the same time. Each asks for one lease after the other.
const TASKS: usize = 8;

/// How many more leases are asked for than the key can have.
const TOO_MANY: usize = 4;

/// A key has at most [`MAX_HOLDERS`] live holders, even if they race. One more request is refused. The refusal writes
/// nothing and reports no conflict. A holder may ask again, and another request is granted when a holder has left or
/// expired.
///
/// This property writes a thousand documents, large ones at the end, so it is not in the
/// [suite](crate::conformance_suite). Call it once for a store.
pub async fn a_key_has_a_bounded_number_of_holders(clients: &Clients) -> Outcome {
    let key = fresh_key("bounded")?;
    let reader = || request(&key, "a reader", LONG).shared();
    let readers: Vec<_> = (0..MAX_HOLDERS + TOO_MANY).map(|_| reader()).collect();
    let tasks = (0..TASKS).map(|task| {
        let store = clients.of_task(task);
        let mine: Vec<_> = readers.iter().skip(task).step_by(TASKS).cloned().collect();
        tokio::spawn(async move {
            let mut answers = Vec::new();
            for reader in mine {
                answers.push((store.acquire(&reader).await?, reader));
            }
            Ok::<_, Error>(answers)
        })
    });
    let mut inside = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        for (answer, reader) in task.await?? {
            match answer {
                AcquireAnswer::Granted(_) => inside.push(reader),
                AcquireAnswer::Held(held) => is_full(&held, &reader)?,
                AcquireAnswer::Done(done) => return no_tick(&done),
            }
        }
    }
    ensure!(
        inside.len() == MAX_HOLDERS,
        "{} readers have {MAX_HOLDERS} places",
        inside.len()
    );

    let full = state(&clients.first, &key).await?;
    is_full(&refused(&clients.first, &reader()).await?, &reader())?;
    is_full(
        &refused(&clients.second, &reader().reentrant()).await?,
        &reader(),
    )?;
    let writer = request(&key, "a writer", LONG);
    for request in [writer.clone(), writer.permits(1, 100)?] {
        let held = refused(&clients.first, &request).await?;
        ensure!(
            !rules::is_full(&held, &request),
            "a conflict is shown as too many holders"
        );
    }
    let after = state(&clients.first, &key).await?;
    ensure!(
        (after.fence, &after.holders) == (full.fence, &full.holders),
        "a refusal for want of a place has changed the document"
    );

    let Some(first) = inside.first() else {
        return violation("nobody has a place");
    };
    granted(&clients.second, first).await?;
    let release = ReleaseRequest::new(key.clone(), first.lease);
    clients.second.release(&release).await?;
    let mut short = reader();
    short.ttl = SHORT;
    granted(&clients.first, &short).await?;
    // Another reader is granted the key when this one has expired.
    let next = reader();
    while let AcquireAnswer::Held(held) = clients.second.acquire(&next).await? {
        is_full(&held, &next)?;
        tokio::time::sleep(held.expires_in()).await;
    }
    let left = state(&clients.first, &key).await?.holders;
    ensure!(
        left.len() == MAX_HOLDERS,
        "{MAX_HOLDERS} places have {} holders",
        left.len()
    );
    Ok(())
}

fn is_full(held: &Held, request: &AcquireRequest) -> Outcome {
    ensure!(
        held.holders().len() == MAX_HOLDERS && rules::is_full(held, request),
        "a reader was refused because of {} holders",
        held.holders().len()
    );
    Ok(())
}
