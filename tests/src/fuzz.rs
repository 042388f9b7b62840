//! Any text as key, owner or note, through a store and back.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use leasehold::{
    Attempt, Error, Filter, Leases, PermitAttempt, Store,
    limits::{MAX_KEY_BYTES, MAX_NOTE_BYTES, MAX_OWNER_BYTES},
};

use super::{patient, text::Texts};

/// How many requests are under way at the same time.
const AT_ONCE: usize = 64;
/// One in this many keys has a limiter as well.
const LIMITED: usize = 4;
/// A ttl that is longer than any test.
const LONG: Duration = Duration::from_secs(600);
/// A window that is over at once.
const MOMENT: Duration = Duration::from_millis(1);

/// An owner and a note.
type Beside = (String, Option<String>);

/// Sends this many keys, owners and notes through a store that is empty. Valid text comes back byte for byte, and
/// leaves one document of a lock. Text that is not valid is an error, and leaves nothing. Some of the keys have a
/// limiter too.
pub async fn any_text_comes_back_or_is_refused(store: impl Store, seed: u64, number: usize) {
    let leases = patient(store);
    let mut texts = Texts::new(seed);
    let mut wanted = BTreeMap::new();
    while wanted.len() < number {
        let note = texts.any(MAX_NOTE_BYTES);
        // An empty note is not the same as no note.
        let note = (!note.is_empty() || wanted.len() % 2 == 0).then_some(note);
        wanted.insert(texts.any(MAX_KEY_BYTES), (texts.any(MAX_OWNER_BYTES), note));
    }
    let start = Instant::now();
    let limited = wanted.keys().step_by(LIMITED);
    let limits =
        stream::iter(limited.clone()).for_each_concurrent(AT_ONCE, |key| limits(&leases, key));
    let locks = stream::iter(&wanted)
        .for_each_concurrent(AT_ONCE, |(key, beside)| comes_back(&leases, key, beside));
    futures::join!(limits, locks);
    println!("{number} texts went through in {:?}", start.elapsed());

    let listed = leases.list(Filter::new()).map_ok(|lock| lock.key);
    let listed: Vec<_> = listed.try_collect().await.unwrap();
    // The list has the keys in the order of their bytes.
    let good = |(key, beside): (&String, &Beside)| bad(key, beside).is_none().then(|| key.clone());
    let good: Vec<_> = wanted.iter().filter_map(good).collect();
    assert!(listed.iter().map(|key| key.as_str()).eq(&good));
    assert!(
        good.len() > number / 2 && good.len() < number,
        "{}",
        good.len()
    );

    let limiters = limited.filter(|key| bad_key(key).is_none()).count();
    let (documents, mut purged) = ((good.len() + limiters) as u64, 0);
    // A store may keep for a moment what is over.
    while purged < documents {
        assert!(start.elapsed() < LONG, "{purged} of {documents} are purged");
        purged += leases.purge(Duration::ZERO).await.unwrap();
        tokio::time::sleep(MOMENT).await;
    }
    assert_eq!(purged, documents);
}

async fn limits(leases: &Leases, key: &str) {
    let bad = match leases.limiter(key, 1, MOMENT).try_permit().await {
        Ok(PermitAttempt::Granted(_)) => None,
        Ok(full) => panic!("{key:?} is taken for another: {full:?}"),
        Err(error) => Some(refused(error)),
    };
    assert_eq!(bad, bad_key(key), "{key:?}");
}

async fn comes_back(leases: &Leases, key: &str, beside: &Beside) {
    let (owner, note) = beside;
    let mut asking = leases.try_acquire(key, LONG).owner(owner.as_str());
    if let Some(note) = note {
        asking = asking.note(note.as_str());
    }
    let lease = match asking.await {
        Ok(Attempt::Acquired(lease)) => lease,
        Ok(held) => panic!("{key:?} is taken for another: {held:?}"),
        Err(error) => return assert_eq!(Some(refused(error)), bad(key, beside)),
    };
    assert_eq!(bad(key, beside), None);
    let state = leases.inspect(key).await.unwrap().unwrap();
    assert_eq!(state.key.as_str(), key);
    let [holder] = &state.holders[..] else {
        panic!("{key:?} has the holders {:?}", state.holders);
    };
    assert_eq!(holder.lease, lease.id());
    assert_eq!(&*holder.owner, owner);
    assert_eq!(holder.note.as_deref(), note.as_deref());
    lease.release().await.unwrap();
}

/// Which text is refused, and how many bytes it has.
type Refused = (&'static str, usize);

fn refused(error: Error) -> Refused {
    match error {
        Error::InvalidKey { bytes } => ("key", bytes),
        Error::InvalidOwner { bytes } => ("owner", bytes),
        Error::InvalidNote { bytes } => ("note", bytes),
        other => panic!("{other:?}"),
    }
}

fn bad_key(key: &str) -> Option<Refused> {
    let bad = key.is_empty() || key.len() > MAX_KEY_BYTES;
    bad.then_some(("key", key.len()))
}

/// The first of the texts that is not valid.
fn bad(key: &str, (owner, note): &Beside) -> Option<Refused> {
    let no_owner = owner.is_empty() || owner.len() > MAX_OWNER_BYTES;
    let note = note.as_ref().map_or(0, String::len);
    bad_key(key)
        .or_else(|| no_owner.then_some(("owner", owner.len())))
        .or_else(|| (note > MAX_NOTE_BYTES).then_some(("note", note)))
}
