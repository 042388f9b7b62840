//! A disk that keeps what it was told to keep, and a part of the rest.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::Path,
};

use fastrand::Rng;

use super::log::{FOLDER, FileId, Record};

/// A sector is written as a whole or not at all.
const SECTOR: usize = 512;
/// The shares of changes that are lost, among those that the disk was not told to keep. Each loss of power uses one.
const SHARES: [f64; 5] = [0.1, 0.3, 0.6, 0.9, 1.0];
/// The share of writes that are torn, among those that are not lost.
const TORN: f64 = 0.4;
/// How often a loss of power is tried again if it lost nothing. There may be nothing to lose.
const ATTEMPTS: usize = 8;

/// The state of a disk at one place of a record.
pub struct Disk<'a> {
    files: Vec<File<'a>>,
    /// The names that are kept, and the changes of names since the last sync of the folder.
    names: BTreeMap<&'a str, FileId>,
    renamed: VecDeque<(&'a str, Option<FileId>)>,
    /// How many changes of names are in `names`.
    named: usize,
    /// The syncs that are not carried out yet: which file, and how many of its changes each of them covers.
    due: VecDeque<(FileId, usize)>,
    late: usize,
}

#[derive(Default)]
struct File<'a> {
    kept: Vec<u8>,
    changes: VecDeque<Change<'a>>,
    /// How many changes are in `kept`.
    count: usize,
}

#[derive(Clone, Copy)]
enum Change<'a> {
    Write(usize, &'a [u8]),
    Cut(usize),
}

/// What a loss of power leaves.
#[derive(Default)]
pub struct Left {
    pub files: BTreeMap<String, Vec<u8>>,
    /// How many changes are lost, and how many writes are torn.
    pub lost: usize,
    pub torn: usize,
}

impl Left {
    pub fn is_complete(&self) -> bool {
        self.lost == 0 && self.torn == 0
    }

    pub fn write(&self, folder: &Path) {
        for (name, bytes) in &self.files {
            fs::write(folder.join(name), bytes).unwrap();
        }
    }
}

impl<'a> Disk<'a> {
    /// A disk that carries out each sync only after this many more syncs. An honest disk has 0.
    pub fn new(late: usize) -> Self {
        Self {
            files: Vec::new(),
            names: BTreeMap::new(),
            renamed: VecDeque::new(),
            named: 0,
            due: VecDeque::new(),
            late,
        }
    }

    pub fn apply(&mut self, record: &'a Record) {
        match record {
            Record::Named(name, file) => self.renamed.push_back((name, Some(*file))),
            Record::Unnamed(name) => self.renamed.push_back((name, None)),
            Record::Written(file, at, bytes) => self.change(*file, Change::Write(*at, bytes)),
            Record::Cut(file, length) => self.change(*file, Change::Cut(*length)),
            Record::Synced(file) => {
                let count = match *file {
                    FOLDER => self.named + self.renamed.len(),
                    file => self.file(file).count + self.file(file).changes.len(),
                };
                self.due.push_back((*file, count));
            }
            Record::Said(_) => {}
        }
        while self.due.len() > self.late {
            let (file, count) = self.due.pop_front().unwrap();
            self.keep(file, count);
        }
    }

    fn file(&mut self, file: FileId) -> &mut File<'a> {
        if self.files.len() <= file {
            self.files.resize_with(file + 1, File::default);
        }
        &mut self.files[file]
    }

    fn change(&mut self, file: FileId, change: Change<'a>) {
        self.file(file).changes.push_back(change);
    }

    /// Keeps the changes of a file up to the one with this number.
    fn keep(&mut self, file: FileId, count: usize) {
        if file == FOLDER {
            while self.named < count {
                self.named += 1;
                match self.renamed.pop_front().unwrap() {
                    (name, Some(file)) => self.names.insert(name, file),
                    (name, None) => self.names.remove(name),
                };
            }
            return;
        }
        let file = self.file(file);
        while file.count < count {
            file.count += 1;
            file.changes.pop_front().unwrap().apply(&mut file.kept);
        }
    }

    /// The files as the process sees them.
    pub fn seen(&self) -> BTreeMap<String, Vec<u8>> {
        let mut names = self.names.clone();
        for (name, file) in &self.renamed {
            match file {
                Some(file) => names.insert(name, *file),
                None => names.remove(name),
            };
        }
        let seen = |(name, file): (&str, FileId)| {
            let file = self.files.get(file);
            (name.to_owned(), file.map(File::seen).unwrap_or_default())
        };
        names.into_iter().map(seen).collect()
    }

    /// What a loss of power leaves: everything that is kept, and a random part of the rest. If possible, something is
    /// missing.
    pub fn after_a_loss(&self, random: &mut Rng) -> Left {
        let mut attempts = 0..ATTEMPTS;
        loop {
            let left = self.after_any_loss(random);
            if !left.is_complete() || attempts.next().is_none() {
                return left;
            }
        }
    }

    fn after_any_loss(&self, random: &mut Rng) -> Left {
        let share = *random.choice(&SHARES).unwrap();
        let mut left = Left::default();
        let mut names = self.names.clone();
        // The changes of one name are kept in order, up to one of them. Changes of other names are independent of that.
        let mut lost_of = BTreeSet::new();
        for (name, file) in &self.renamed {
            if lost_of.contains(name) || random.f64() < share {
                lost_of.insert(*name);
                left.lost += 1;
                continue;
            }
            match file {
                Some(file) => names.insert(name, *file),
                None => names.remove(name),
            };
        }
        for (name, file) in names {
            let bytes = match self.files.get(file) {
                Some(file) => file.after_a_loss(share, random, &mut left),
                None => Vec::new(),
            };
            left.files.insert(name.to_owned(), bytes);
        }
        left
    }
}

impl File<'_> {
    fn seen(&self) -> Vec<u8> {
        let mut bytes = self.kept.clone();
        self.changes.iter().for_each(|it| it.apply(&mut bytes));
        bytes
    }

    fn after_a_loss(&self, share: f64, random: &mut Rng, left: &mut Left) -> Vec<u8> {
        let mut bytes = self.kept.clone();
        let changes: Vec<_> = self.changes.iter().copied().collect();
        // Writes before a cut of the file are carried out before it, since the disk has one length of the file at a
        // time.
        for changes in changes.chunk_by(|before, _| matches!(before, Change::Write(..))) {
            let mut there = Vec::new();
            let (writes, cut) = match changes.split_last() {
                Some((cut @ Change::Cut(_), writes)) => (writes, Some(cut)),
                _ => (changes, None),
            };
            for write in writes {
                match random.f64() {
                    chance if chance < share => left.lost += 1,
                    _ if random.f64() < TORN => write.tear(random, &mut there, left),
                    _ => there.push(*write),
                }
            }
            random.shuffle(&mut there);
            there.iter().for_each(|it| it.apply(&mut bytes));
            match cut {
                Some(_) if random.f64() < share => left.lost += 1,
                Some(cut) => cut.apply(&mut bytes),
                None => {}
            }
        }
        bytes
    }
}

impl<'a> Change<'a> {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match *self {
            Self::Write(at, written) => {
                let end = at + written.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[at..end].copy_from_slice(written);
            }
            Self::Cut(length) => bytes.resize(length, 0),
        }
    }

    /// Adds some of the sectors of a write. A write within one sector is added as a whole.
    fn tear(self, random: &mut Rng, there: &mut Vec<Change<'a>>, left: &mut Left) {
        let Self::Write(mut at, mut rest) = self else {
            return there.push(self);
        };
        let mut sectors = Vec::new();
        while !rest.is_empty() {
            let (sector, after) = rest.split_at(rest.len().min(SECTOR - at % SECTOR));
            sectors.push(Self::Write(at, sector));
            (at, rest) = (at + sector.len(), after);
        }
        random.shuffle(&mut sectors);
        if sectors.len() > 1 {
            sectors.truncate(random.usize(1..sectors.len()));
            left.torn += 1;
        }
        there.extend(sectors);
    }
}
