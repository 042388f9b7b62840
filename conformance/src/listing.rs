//! Finding locks by owner and by the beginning of their key, and releasing the locks of an owner.

use std::{collections::BTreeSet, sync::Arc};

use futures::TryStreamExt;
use tokio::task::JoinSet;

use super::{
    Clients, LONG, Outcome, Violation, ensure, granted, guard::patient, request, until_free,
    violation,
};
use leasehold::{
    Filter, Key, Store,
    store::{LeaseId, ListRequest, ReleaseRequest},
};

/// The keys that a filter shows, in the order of the stream.
async fn listed(store: &Arc<dyn Store>, filter: Filter) -> Result<Vec<String>, Violation> {
    let locks = patient(store).list(filter);
    let keys = locks.map_ok(|lock| lock.key.to_string());
    Ok(keys.try_collect().await?)
}

/// Each filter shows the locks that it describes, and no others, in the order of their keys.
pub async fn a_list_shows_what_its_filter_describes(clients: &Clients) -> Outcome {
    let name = LeaseId::random().to_string();
    let key = |suffix: &str| Key::new(format!("{name}{suffix}"));
    let (me, other) = (format!("me {name}"), format!("other {name}"));
    for suffix in ["/b", "/a", "/é", "/*", "-a"] {
        granted(&clients.first, &request(&key(suffix)?, &me, LONG)).await?;
    }
    granted(&clients.second, &request(&key("/c")?, &other, LONG)).await?;
    let released = request(&key("/released")?, &me, LONG);
    granted(&clients.first, &released).await?;
    let release = ReleaseRequest::new(released.key.clone(), released.lease);
    clients.first.release(&release).await?;
    let dead = request(&key("/dead")?, &me, super::SHORT);
    granted(&clients.first, &dead).await?;
    until_free(&clients.first, &dead.key).await?;

    let all = ["-a", "/*", "/a", "/b", "/c", "/dead", "/released", "/é"];
    let cases: [(&str, Filter, &[&str]); 6] = [
        ("all", Filter::new().prefix(name.as_str()), &all),
        (
            "live",
            Filter::new().prefix(name.as_str()).live(),
            &["-a", "/*", "/a", "/b", "/c", "/é"],
        ),
        (
            "prefix",
            Filter::new().prefix(format!("{name}/")).live(),
            &["/*", "/a", "/b", "/c", "/é"],
        ),
        (
            "odd prefix",
            Filter::new().prefix(format!("{name}/*")),
            &["/*"],
        ),
        (
            "owner",
            Filter::new().owner(me.as_str()),
            &["-a", "/*", "/a", "/b", "/é"],
        ),
        (
            "owner and prefix",
            Filter::new()
                .owner(other.as_str())
                .prefix(format!("{name}/")),
            &["/c"],
        ),
    ];
    for (what, filter, wanted) in cases {
        let wanted: Vec<_> = wanted
            .iter()
            .map(|suffix| format!("{name}{suffix}"))
            .collect();
        let shown = listed(&clients.second, filter).await?;
        ensure!(
            shown == wanted,
            "the list by {what} shows {shown:?} and not {wanted:?}"
        );
    }
    let nobody = listed(&clients.first, Filter::new().owner(name.as_str())).await?;
    ensure!(nobody.is_empty(), "an owner without locks has {nobody:?}");
    Ok(())
}

/// Page by page, while other locks come and go, every lock that stays is shown once.
pub async fn pages_show_every_lock_that_stays_once(clients: &Clients) -> Outcome {
    let name = LeaseId::random();
    let mut staying = BTreeSet::new();
    for number in 0..25 {
        let key = Key::new(format!("{name} {number:03}"))?;
        granted(&clients.first, &request(&key, "stays", LONG)).await?;
        staying.insert(key);
    }
    let filter = Filter::new().prefix(format!("{name} ")).live();
    let mut shown = Vec::new();
    let mut after = None;
    for round in 0.. {
        ensure!(round < 100, "the pages do not end");
        let page = ListRequest::new(filter.clone(), after, 7);
        let page = clients.second.list(&page).await?;
        ensure!(
            page.locks.len() <= 7,
            "a page of 7 shows {}",
            page.locks.len()
        );
        shown.extend(page.locks.into_iter().map(|lock| lock.key));
        // Before and after the place where the list is now.
        for odd in ["000 passes", "024 passes"] {
            let passing = request(&Key::new(format!("{name} {odd} {round}"))?, "passes", LONG);
            granted(&clients.first, &passing).await?;
            let release = ReleaseRequest::new(passing.key, passing.lease);
            clients.first.release(&release).await?;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    ensure!(
        shown.is_sorted(),
        "the pages are not in the order of the keys"
    );
    let once: BTreeSet<_> = shown.iter().cloned().collect();
    ensure!(
        once.len() == shown.len(),
        "a lock is shown twice in {shown:?}"
    );
    let missed: Vec<_> = staying.difference(&once).collect();
    ensure!(missed.is_empty(), "the pages miss {missed:?}");
    Ok(())
}

/// Releasing an owner frees all locks of that owner, and no others.
pub async fn releasing_an_owner_frees_all_of_its_locks(clients: &Clients) -> Outcome {
    let name = LeaseId::random();
    let (gone, stays) = (format!("gone {name}"), format!("stays {name}"));
    let mut tasks = JoinSet::new();
    for number in 0..40 {
        let owner = if number % 4 == 0 { &stays } else { &gone };
        let request = request(&Key::new(format!("{name} {number:03}"))?, owner, LONG);
        let store = clients.of_task(number);
        tasks.spawn(async move { granted(&store, &request).await });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let leases = patient(&clients.second);
    let released = leases.release_owner(&gone).await?;
    ensure!(released == 30, "{released} of 30 leases were released");
    let left = listed(
        &clients.first,
        Filter::new().prefix(format!("{name} ")).live(),
    )
    .await?;
    ensure!(
        left.len() == 10,
        "of 10 locks of another owner {} are left",
        left.len()
    );
    let owned = listed(&clients.first, Filter::new().owner(stays.as_str())).await?;
    if owned != left {
        return violation(format!(
            "{owned:?} are the other owner's, and {left:?} are left"
        ));
    }
    let again = leases.release_owner(&gone).await?;
    ensure!(again == 0, "an owner without leases had {again} released");
    Ok(())
}
