//! Counts what has happened in a run so far.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

use anyhow::Result;

use crate::{
    check::{Kind, Violations, WAITED_FOR},
    history::{Claim, Event},
    work::{CAPACITY, CONTENDED, READERS},
};

/// How often each thing that a run shows must happen in it.
pub const LEAST: u64 = 10;

/// The counts.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    exclusive: u64,
    shared: u64,
    permits: u64,
    /// Grants of the key that is always waited for.
    pub contended: u64,
    refusals: u64,
    releases: u64,
    /// Ticks that were acknowledged as done.
    ticks: u64,
    /// Answers that a tick is done.
    told_done: u64,
    /// Permits of limiters.
    limited: u64,
    /// Grants from memory.
    from_memory: u64,
    /// Leases that went back because another process waited.
    recalls: u64,
    /// Writes that a guard accepted, and late writes that it refused.
    guarded: u64,
    fenced: u64,
    /// Writes that the ledger accepted.
    pub written: u64,
}

impl Counts {
    fn add(&mut self, event: &Event) {
        match event {
            Event::Granted { key, claim, .. } => {
                *match claim {
                    Claim::OneOf(READERS) => &mut self.shared,
                    Claim::OneOf(CAPACITY) => &mut self.permits,
                    _ => &mut self.exclusive,
                } += 1;
                self.contended += u64::from(key == CONTENDED);
            }
            Event::Held { .. } => self.refusals += 1,
            Event::Released { .. } => self.releases += 1,
            Event::TickDone { .. } => self.ticks += 1,
            Event::ToldDone { .. } => self.told_done += 1,
            Event::Permit { .. } => self.limited += 1,
            Event::WentBack { reason, .. } if reason == WAITED_FOR => self.recalls += 1,
            Event::WriteAnswered {
                guarded: true,
                written,
                ..
            } => {
                *if *written {
                    &mut self.guarded
                } else {
                    &mut self.fenced
                } += 1
            }
            _ => {}
        }
    }

    pub fn grants(&self) -> u64 {
        self.exclusive + self.shared + self.permits
    }

    pub fn grants_from_memory(&self) -> u64 {
        self.from_memory
    }

    pub fn recalls(&self) -> u64 {
        self.recalls
    }

    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// What did not happen often enough, so that the run shows nothing. `before` is the number of grants of the key
    /// that is always waited for when the last server came back. With `locks_only` it is enough that the locks were
    /// used.
    pub fn missing(&self, before: u64, locks_only: bool) -> Violations {
        let locks = [
            ("exclusive grants", self.exclusive),
            ("shared grants", self.shared),
            ("grants of permits", self.permits),
            ("refusals", self.refusals),
            ("releases", self.releases),
            ("writes under a fence", self.written),
            ("grants from memory", self.from_memory),
            (
                "grants after the last fault of a server",
                self.contended - before,
            ),
        ];
        let others = [
            ("recalls", self.recalls),
            ("ticks done", self.ticks),
            ("requests for a tick that was done", self.told_done),
            ("permits of a limiter", self.limited),
            ("guarded writes", self.guarded),
            ("late writes that the guard refused", self.fenced),
        ];
        let others = others.into_iter().filter(|_| !locks_only);
        let happened = locks.into_iter().chain(others);
        let rare = happened.filter(|(_, times)| *times < LEAST);
        rare.map(|(what, times)| Kind::Run.of(format!("there were {times} {what}")))
            .collect()
    }
}

/// Reads the histories of a run while they are written.
pub struct Tally {
    folder: PathBuf,
    /// How many bytes of each file were read.
    read: HashMap<PathBuf, u64>,
    counts: Counts,
    /// The leases that were granted. Of those that stay, there are more grants.
    leases: HashSet<String>,
}

impl Tally {
    pub fn of(folder: PathBuf) -> Self {
        Self {
            folder,
            read: HashMap::new(),
            counts: Counts::default(),
            leases: HashSet::new(),
        }
    }

    pub fn counts(&mut self) -> Result<Counts> {
        for history in fs::read_dir(&self.folder)? {
            let path = history?.path();
            let mut file = File::open(&path)?;
            let read = self.read.entry(path).or_default();
            file.seek(SeekFrom::Start(*read))?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            // The last line may be incomplete.
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            for line in text[..whole].lines() {
                let event = line.parse()?;
                self.counts.add(&event);
                if let Event::Granted { lease, .. } = event
                    && !self.leases.insert(lease)
                {
                    self.counts.from_memory += 1;
                }
            }
            *read += whole as u64;
        }
        Ok(self.counts.clone())
    }
}
