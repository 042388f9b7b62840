//! What an application was told, and whether a file that a loss of power left agrees with that.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use leasehold::{
    Filter, Key, LockState, SqliteStore, Store,
    jobs::Tick,
    store::{AcquireAnswer, LeaseId, ListRequest, PermitAnswer, PermitId, PermitRequest},
};
use rusqlite::Connection;

use super::{
    log::{Event, Granted},
    workload::{JOB, KEYS, LIMITER, ask, quota},
};

/// More locks than the file has.
const ALL: usize = 1_000;

/// What can be wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Harm {
    /// The store does not open it, or SQLite finds it broken.
    Broken,
    /// A lease that was acknowledged is not there.
    GrantLost,
    /// The lease is there, but ends earlier than was acknowledged.
    RenewalLost,
    /// A key has a fence that is less than one that was acknowledged, or grants one that is not greater.
    FenceLost,
    /// A key is granted to a second lease beside its holder.
    GrantedTwice,
    /// A lease is there that was released or evicted.
    ReleaseUndone,
    /// A tick that is done would be done again.
    TickForgotten,
    /// A limiter lets through more permits than are left.
    PermitsForgotten,
}

pub type Harms = Vec<(Harm, String)>;

/// What an application was told up to one place of a record.
#[derive(Clone, Debug, Default)]
pub struct Promised {
    leases: BTreeMap<LeaseId, Granted>,
    ended: BTreeSet<LeaseId>,
    /// The greatest fence of each key.
    fences: BTreeMap<String, i64>,
    tick: Option<i64>,
    permits: u32,
    /// The leases that may be over by a request that is not answered yet.
    ends: Vec<LeaseId>,
}

impl Promised {
    pub fn hear(&mut self, event: &Event) {
        self.ends.clear();
        match event {
            Event::Asks(ends) => self.ends.clone_from(ends),
            Event::Refused => {}
            Event::Granted(granted) => {
                for lease in granted {
                    self.raise(&lease.key, lease.fence);
                    self.leases.insert(lease.lease, lease.clone());
                }
            }
            Event::Released(lease) => self.end(*lease),
            Event::Evicted { key, ends, fence } => {
                self.raise(key, *fence);
                ends.iter().for_each(|lease| self.end(*lease));
            }
            Event::Done { lease, tick } => {
                self.tick = self.tick.max(Some(*tick));
                self.end(*lease);
            }
            Event::Permitted(permits) => self.permits += permits,
        }
    }

    fn raise(&mut self, key: &str, fence: i64) {
        let greatest = self.fences.entry(key.to_owned()).or_default();
        *greatest = fence.max(*greatest);
    }

    fn end(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
        self.ended.insert(lease);
    }

    /// The leases that have to be there at this time.
    fn live(&self, now: i64) -> impl Iterator<Item = &Granted> {
        let live = move |it: &&Granted| it.until > now && !self.ends.contains(&it.lease);
        self.leases.values().filter(live)
    }

    fn fence(&self, key: &str) -> i64 {
        self.fences.get(key).copied().unwrap_or_default()
    }

    /// What is wrong with the file at this path, as the host finds it after the next boot.
    pub async fn harms(&self, path: &Path) -> Harms {
        let store = match SqliteStore::open(path).await {
            Ok(store) => store,
            Err(error) => return vec![(Harm::Broken, format!("{error:?}"))],
        };
        let found = self.found(path, &store).await;
        found.unwrap_or_else(|error| vec![(Harm::Broken, format!("{error:?}"))])
    }

    async fn found(&self, path: &Path, store: &SqliteStore) -> Result<Harms, leasehold::Error> {
        let mut harms = Harms::new();
        let whole = Connection::open(path)
            .and_then(|it| it.pragma_query_value(None, "integrity_check", |row| row.get(0)))
            .unwrap_or_else(|error| error.to_string());
        if whole != "ok" {
            harms.push((Harm::Broken, whole));
        }
        let all = ListRequest::new(Filter::new(), None, ALL);
        let states = store.list(&all).await?.locks;
        // Without any lock the list has no time, and everything that was acknowledged is missing.
        let now = states.first().map(|it| it.now.timestamp_millis());
        let now = now.unwrap_or_default();
        self.compare(&states, now, &mut harms);
        self.ask_again(store, now, &mut harms).await?;
        Ok(harms)
    }

    /// Compares the locks of the file with what the application was told.
    fn compare(&self, states: &[LockState], now: i64, harms: &mut Harms) {
        let state = |key: &str| states.iter().find(|state| state.key.as_str() == key);
        for lease in self.live(now) {
            let holders = state(&lease.key).map_or(&[][..], |state| &state.holders);
            let holder = holders.iter().find(|it| it.lease == lease.lease);
            match holder {
                Some(it) if it.fence.get() < lease.fence => {
                    harms.push((Harm::GrantLost, format!("{lease:?} is {it:?}")));
                }
                Some(it) if it.expires_at.timestamp_millis() < lease.until => {
                    harms.push((Harm::RenewalLost, format!("{lease:?} is {it:?}")));
                }
                Some(_) => {}
                None => harms.push((Harm::GrantLost, format!("{lease:?} is not there"))),
            }
        }
        for (key, fence) in &self.fences {
            let there = state(key).map(|state| state.fence.get());
            if there < Some(*fence) {
                harms.push((Harm::FenceLost, format!("{key}: {there:?} after {fence}")));
            }
        }
        for holder in states.iter().flat_map(|state| &state.holders) {
            if self.ended.contains(&holder.lease) {
                harms.push((Harm::ReleaseUndone, format!("{holder:?}")));
            }
        }
    }

    /// Asks for keys that others hold, as a process does that starts after the loss of power.
    async fn ask_again(
        &self,
        store: &SqliteStore,
        now: i64,
        harms: &mut Harms,
    ) -> Result<(), leasehold::Error> {
        for key in KEYS {
            let holder = self.live(now).find(|it| it.key == key);
            let answer = store.acquire(&ask(key, LeaseId::random())).await?;
            match (answer, holder) {
                (AcquireAnswer::Granted(grant), Some(holder)) => {
                    harms.push((Harm::GrantedTwice, format!("{grant:?} beside {holder:?}")));
                }
                (AcquireAnswer::Granted(grant), None) if grant.fence.get() <= self.fence(key) => {
                    let text = format!("{key}: {grant:?} after {}", self.fence(key));
                    harms.push((Harm::FenceLost, text));
                }
                _ => {}
            }
        }
        if let Some(tick) = self.tick {
            let job = ask(JOB, LeaseId::random()).tick(Tick::counter(tick));
            let answer = store.acquire(&job).await?;
            let done = matches!(&answer, AcquireAnswer::Done(done) if done.tick.number() >= tick);
            if !done {
                harms.push((Harm::TickForgotten, format!("{tick}: {answer:?}")));
            }
        }
        let (key, most) = (Key::new(LIMITER).unwrap(), quota().limit());
        let all = PermitRequest::new(key, PermitId::random(), quota(), 1).up_to(most);
        if let PermitAnswer::Granted { permits, .. } = store.permit(&all).await?
            && permits + self.permits > most
        {
            let text = format!("{permits} of {most} after {}", self.permits);
            harms.push((Harm::PermitsForgotten, text));
        }
        Ok(())
    }
}
