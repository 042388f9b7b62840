//! Keys are text, and an invalid key or ttl is refused before it is sent.

use std::time::Duration;

use super::{
    Clients, LONG, Outcome, PATIENCE, ensure, fresh_key, granted, guard::patient, renew, request,
    sole_holder, state, violation,
};
use leasehold::{
    Error, Key, Leases,
    limits::{MAX_KEY_BYTES, MAX_OWNER_BYTES, MAX_TTL},
    store::{LeaseId, ReleaseAnswer, ReleaseRequest, RenewAnswer},
};

/// Texts that a database, an address or a shell might not treat as text. All of them are different keys, even those
/// that differ only by a blank, by case or by composition.
const ODD: [&str; 24] = [
    "$",
    "$$ROOT",
    "$$NOW",
    "$fence",
    ".",
    "..",
    "a.b",
    "/",
    "a/b",
    "?refresh=true",
    "#",
    "%2F",
    "_create",
    " ",
    " a",
    "a ",
    "A",
    "a",
    "Å",
    "A\u{30a}",
    "線程 🔒",
    "line\nbreak",
    "\"quoted\"",
    "\\",
];

/// Any text is a valid key, however odd. It is locked separately from every other key, shown as it was given, renewed
/// and released.
pub async fn odd_keys_are_just_text(clients: &Clients) -> Outcome {
    let own = LeaseId::random().to_string();
    let mut keys = Vec::new();
    for odd in ODD {
        keys.push(Key::new(format!("{odd}{own}"))?);
        keys.push(Key::new(format!("{own}{odd}"))?);
    }
    keys.push(Key::new(
        own.repeat(MAX_KEY_BYTES).split_at(MAX_KEY_BYTES).0,
    )?);
    let mut longest = format!("{own}🔒");
    while longest.len() + 4 <= MAX_KEY_BYTES {
        longest.push('🔒');
    }
    keys.push(Key::new(longest)?);
    let mut leases = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        // The owner is text as well.
        let lease = request(key, ODD[number % ODD.len()], LONG);
        granted(&clients.of_task(number), &lease).await?;
        leases.push(lease);
    }
    for lease in leases {
        let state = state(&clients.first, &lease.key).await?;
        ensure!(
            state.key == lease.key,
            "{:?} is shown as {:?}",
            lease.key,
            state.key
        );
        let holder = sole_holder(&clients.second, &lease.key).await?;
        ensure!(
            holder.lease == lease.lease && holder.owner == lease.owner,
            "{:?} of {:?} is held by {holder:?}",
            lease.key,
            lease.owner
        );
        let answer = renew(&clients.first, &lease.key, lease.lease, LONG).await?;
        ensure!(
            matches!(answer, RenewAnswer::Renewed(_)),
            "{:?} could not be renewed: {answer:?}",
            lease.key
        );
        let release = ReleaseRequest::new(lease.key.clone(), lease.lease);
        ensure!(
            clients.second.release(&release).await? == ReleaseAnswer::Released,
            "{:?} could not be released",
            lease.key
        );
        ensure!(
            super::state(&clients.first, &lease.key).await?.is_free(),
            "{:?} is not free after its release",
            lease.key
        );
    }
    Ok(())
}

/// A key that is empty or too long, and a ttl that is too short or too long, are errors that say so. They leave nothing
/// behind.
pub async fn bad_input_is_refused_and_nothing_is_stored(clients: &Clients) -> Outcome {
    let leases = patient(&clients.first);
    for bytes in [0, MAX_KEY_BYTES + 1, 100_000] {
        let key = "k".repeat(bytes);
        match leases.try_acquire(&key, LONG).await {
            Err(Error::InvalidKey { bytes: told }) if told == bytes => {}
            other => return violation(format!("a key of {bytes} bytes: {other:?}")),
        }
        let looked = leases.inspect(&key).await;
        ensure!(
            matches!(looked, Err(Error::InvalidKey { .. })),
            "a look at a key of {bytes} bytes: {looked:?}"
        );
    }
    let key = fresh_key("bad ttl")?;
    let margin = clients.first.clock_margin();
    let too_short = (margin * 2).saturating_sub(Duration::from_nanos(1));
    let bad = [
        Duration::ZERO,
        too_short,
        MAX_TTL + Duration::from_millis(1),
        Duration::MAX,
    ];
    for ttl in bad {
        match leases.try_acquire(&key, ttl).await {
            Err(Error::InvalidTtl { ttl: told, .. }) if told == ttl => {}
            other => return violation(format!("a ttl of {ttl:?}: {other:?}")),
        }
        let waited = leases.acquire(&key, ttl).await;
        ensure!(
            matches!(waited, Err(Error::InvalidTtl { .. })),
            "a wait with a ttl of {ttl:?}: {waited:?}"
        );
    }
    for bytes in [0, MAX_OWNER_BYTES + 1] {
        let nobody = Leases::builder(clients.first.clone())
            .owner("o".repeat(bytes))
            .call_timeout(PATIENCE)
            .build();
        match nobody.try_acquire(&key, LONG).await {
            Err(Error::InvalidOwner { bytes: told }) if told == bytes => {}
            other => return violation(format!("an owner of {bytes} bytes: {other:?}")),
        }
    }
    let stored = clients.second.inspect(&key).await?;
    ensure!(stored.is_none(), "bad input left a document: {stored:?}");
    // The bounds themselves are valid.
    let lease = leases.acquire(&key, MAX_TTL).await?;
    lease.release().await?;
    Ok(())
}
