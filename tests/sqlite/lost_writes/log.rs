//! The record of what a process told the disk, and of what its application was told meanwhile.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{File, OpenOptions},
    io::Write as _,
    path::Path,
};

use leasehold::store::LeaseId;
use serde::{Deserialize, Serialize};

/// The kinds of record of `record_writes.c`, and the kind for what the application was told, which is recorded among
/// them.
const NAMED: u64 = 1;
const UNNAMED: u64 = 2;
const WRITTEN: u64 = 3;
const CUT: u64 = 4;
const SYNCED: u64 = 5;
const SAID: u64 = 6;
const HEADER: usize = 32;

/// A file of a record. Two files that had the same name one after the other have two ids.
pub type FileId = usize;
/// The folder of the files. A sync of it keeps their names.
pub const FOLDER: FileId = 0;

#[derive(Debug, PartialEq, Eq)]
pub enum Record {
    Named(String, FileId),
    Unnamed(String),
    Written(FileId, usize, Vec<u8>),
    Cut(FileId, usize),
    Synced(FileId),
    Said(Event),
}

/// What an application asks a store for, or what the store tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The application asks for something that may end these leases.
    Asks(Vec<LeaseId>),
    /// The store told it that nothing was done.
    Refused,
    /// The leases that were granted or renewed. The application may have had some of them before.
    Granted(Vec<Granted>),
    Released(LeaseId),
    /// It evicted its leases on a key. The key has this fence now.
    Evicted {
        key: String,
        ends: Vec<LeaseId>,
        fence: i64,
    },
    /// It released a lease under which a tick was done.
    Done {
        lease: LeaseId,
        tick: i64,
    },
    /// It was granted this many permits.
    Permitted(u32),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    pub key: String,
    pub lease: LeaseId,
    pub fence: i64,
    /// When the lease expires by the store's clock, in milliseconds since 1970.
    pub until: i64,
}

/// Adds what the application is told to the record of its process.
pub struct Teller(File);

impl Teller {
    pub fn new(record: &Path) -> Self {
        Self(OpenOptions::new().append(true).open(record).unwrap())
    }

    pub fn tell(&mut self, event: &Event) {
        let said = serde_json::to_vec(event).unwrap();
        let header = [SAID, 0, 0, said.len() as u64];
        let mut bytes = header.map(u64::to_le_bytes).concat();
        bytes.extend(said);
        self.0.write_all(&bytes).unwrap();
    }
}

/// Reads a record.
pub fn read(bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    let mut names = Names::default();
    let mut rest = bytes;
    while let Some((header, after)) = rest.split_at_checked(HEADER) {
        let number = |at: usize| u64::from_le_bytes(header[at * 8..][..8].try_into().unwrap());
        let [kind, inode, at, length] = [0, 1, 2, 3].map(number);
        let (payload, after) = after.split_at(length as usize);
        rest = after;
        let text = || String::from_utf8(payload.to_vec()).unwrap();
        records.extend(match kind {
            NAMED => names.named(inode, text()),
            UNNAMED => Some(names.unnamed(text())),
            WRITTEN => Some(Record::Written(
                names.file(inode),
                at as usize,
                payload.to_vec(),
            )),
            CUT => Some(Record::Cut(names.file(inode), at as usize)),
            SYNCED => Some(Record::Synced(names.file(inode))),
            SAID => Some(Record::Said(serde_json::from_slice(payload).unwrap())),
            kind => panic!("a record of the kind {kind}"),
        });
    }
    assert!(rest.is_empty(), "the record ends in the middle");
    records
}

/// Which file has which name and inode at one place of a record. An inode may be used again once its file is gone.
#[derive(Default)]
struct Names {
    there: BTreeSet<String>,
    files: HashMap<u64, FileId>,
    last: FileId,
}

impl Names {
    /// Notes that a file was opened. Returns `None` if the file was there before.
    fn named(&mut self, inode: u64, name: String) -> Option<Record> {
        if name.is_empty() {
            self.files.insert(inode, FOLDER);
            return None;
        }
        if !self.there.insert(name.clone()) {
            return None;
        }
        self.last += 1;
        self.files.insert(inode, self.last);
        Some(Record::Named(name, self.last))
    }

    fn unnamed(&mut self, name: String) -> Record {
        assert!(self.there.remove(&name), "{name} was not there");
        Record::Unnamed(name)
    }

    fn file(&self, inode: u64) -> FileId {
        self.files[&inode]
    }
}
