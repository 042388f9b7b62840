//! The fences of the leases that stay with their process. The store grants a block of them, and its answers name the
//! last one. The grants from memory take them one after the other.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Answer, Event, Time};

/// The grants of a store that took several fences in a row.
#[derive(Debug, Default)]
pub(super) struct Blocks<'a>(HashMap<(&'a str, i64), Block>);

/// The fences of such a grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    first: i64,
    /// When the grant was first requested.
    pub(super) sent: Time,
}

impl<'a> Blocks<'a> {
    pub(super) fn of(events: &'a [Event]) -> Self {
        let blocks = grants(events).into_values().map(|it| {
            let block = Block {
                first: it.fence - i64::from(it.fences) + 1,
                sent: it.sent,
            };
            ((it.key, it.fence), block)
        });
        Self(blocks.collect())
    }

    /// The block whose last fence this is.
    pub(super) fn ending(&self, key: &str, fence: i64) -> Option<Block> {
        self.0.get(&(key, fence)).copied()
    }

    /// The fence that was certainly granted if an answer names this one as that of a holder.
    pub(super) fn certain(&self, key: &str, fence: i64) -> i64 {
        self.ending(key, fence).map_or(fence, |block| block.first)
    }
}

/// A lease that the store granted with several fences, so that it could stay with its process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay<'a> {
    pub(super) key: &'a str,
    /// The last of the fences.
    pub(super) fence: i64,
    fences: u16,
    pub(super) sent: Time,
    pub(super) got: Time,
}

/// The leases that stayed, by their ids. A lease that has expired may be granted again, with greater fences. Its last
/// grant counts.
pub(super) fn stays(events: &[Event]) -> BTreeMap<&str, Stay<'_>> {
    let grants = grants(events).into_iter();
    // In the order of the fences, so that the last grant of a lease is the one that stays in the map.
    grants.map(|((lease, _), stay)| (lease, stay)).collect()
}

/// The grants of several fences, by the lease and the last fence. Of several answers with one grant the first counts.
fn grants(events: &[Event]) -> BTreeMap<(&str, i64), Stay<'_>> {
    let mut granted = HashMap::new();
    for event in events {
        if let Event::Answered {
            request,
            answer: Answer::Granted { fence },
            got,
        } = event
        {
            granted.insert(*request, (*fence, *got));
        }
    }
    let mut grants = BTreeMap::<_, Stay>::new();
    // The store may have granted an earlier request for the lease, which was not answered.
    let mut first_sent = HashMap::<&str, Time>::new();
    for event in events {
        let Event::Asked {
            request,
            key,
            lease,
            fences: fences @ 2..,
            sent,
            ..
        } = event
        else {
            continue;
        };
        let first_sent = first_sent.entry(lease).or_insert(*sent);
        *first_sent = (*first_sent).min(*sent);
        if let Some((fence, got)) = granted.get(request).copied() {
            let stay = Stay {
                key,
                fence,
                fences: *fences,
                sent: *sent,
                got,
            };
            let known = grants.entry((lease.as_str(), fence)).or_insert(stay);
            if got < known.got {
                *known = stay;
            }
        }
    }
    for ((lease, _), stay) in &mut grants {
        stay.sent = first_sent.get(lease).copied().unwrap_or(stay.sent);
    }
    grants
}

/// How many grants came from memory: all grants of a lease but the first.
pub fn from_memory(events: &[Event]) -> usize {
    let stays = stays(events);
    let mut grants = HashMap::<_, usize>::new();
    for event in events {
        if let Event::Granted { lease, .. } = event
            && stays.contains_key(lease.as_str())
        {
            *grants.entry(lease).or_default() += 1;
        }
    }
    grants.into_values().map(|many| many - 1).sum()
}
