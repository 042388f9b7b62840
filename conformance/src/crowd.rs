//! The bound on the holders of one key.

use super::{
    Clients, LONG, Outcome, SHORT, ensure, fresh_key, granted, refused, request, state, violation,
};
use leasehold::{
    Held, rules,
    store::{AcquireAnswer, AcquireRequest, ReleaseRequest},
};

/// So few that a store has to write no great document.
const PLACES: usize = 3;

/// A key has as many live holders as the request allows, of racing ones too. One more is refused, which
/// writes nothing and tells of no conflict; a holder may ask again, and its place is free when it has
/// gone or is over.
pub async fn a_key_has_a_bounded_number_of_holders(clients: &Clients) -> Outcome {
    let key = fresh_key("bounded")?;
    let reader = || request(&key, "a reader", LONG).shared().max_holders(PLACES);
    let readers: Vec<_> = (0..PLACES * 3).map(|_| reader()).collect();
    let tasks = readers.iter().enumerate().map(|(number, reader)| {
        let (store, reader) = (clients.of_task(number), reader.clone());
        tokio::spawn(async move { store.acquire(&reader).await })
    });
    let mut inside = Vec::new();
    for (task, reader) in tasks.collect::<Vec<_>>().into_iter().zip(&readers) {
        match task.await?? {
            AcquireAnswer::Granted(_) => inside.push(reader),
            AcquireAnswer::Held(held) => is_full(&held, reader)?,
        }
    }
    ensure!(
        inside.len() == PLACES,
        "{} readers have {PLACES} places",
        inside.len()
    );

    let full = state(&clients.first, &key).await?;
    is_full(&refused(&clients.first, &reader()).await?, &reader())?;
    is_full(
        &refused(&clients.second, &reader().reentrant()).await?,
        &reader(),
    )?;
    let writer = request(&key, "a writer", LONG).max_holders(PLACES);
    for request in [writer.clone(), writer.permits(1, 100)] {
        let held = refused(&clients.first, &request).await?;
        ensure!(
            !rules::is_full(&held, &request),
            "a conflict is shown as too many holders: {held:?}"
        );
    }
    let after = state(&clients.first, &key).await?;
    ensure!(
        (after.fence, &after.holders) == (full.fence, &full.holders),
        "a refusal for want of a place wrote {after:?} over {full:?}"
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
    // Its place is free when it is over.
    let next = reader();
    while let AcquireAnswer::Held(held) = clients.second.acquire(&next).await? {
        is_full(&held, &next)?;
        tokio::time::sleep(held.expires_in()).await;
    }
    let left = state(&clients.first, &key).await?.holders;
    ensure!(left.len() == PLACES, "{PLACES} places have {left:?}");
    Ok(())
}

fn is_full(held: &Held, request: &AcquireRequest) -> Outcome {
    ensure!(
        held.holders().len() == PLACES && rules::is_full(held, request),
        "with {PLACES} places a reader was refused because of {held:?}"
    );
    Ok(())
}
