//! A loss of power: what the disk was told to keep is there, and of what was written since then only a part.
//!
//! A process does what applications do with a file of locks, while a library records what SQLite tells the disk. After
//! many of the records the files are made anew as a loss of power may leave them, and are opened. Everything that the
//! application had been told by then has to be there.

mod disk;
mod log;
mod promises;
pub mod workload;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    sync::LazyLock,
    thread,
};

use fastrand::Rng;
use leasehold_tests::{
    long, preload,
    processes::{Place, process},
};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use self::{
    disk::Disk,
    log::{Event, Record},
    promises::{Harm, Promised},
};
use super::path;

const RECORD_WRITES: &str = include_str!("lost_writes/record_writes.c");
/// The seed for the work, for the places in its record, and for what each loss of power leaves.
const SEED: u64 = 20;
/// The least number of losses of power that have to lose or tear something.
const LEAST: usize = 1_000;
/// How many losses of power follow on a change that the disk may lose. A quarter as many follow on other records, such
/// as an answer to the application. In a long run one follows on each record.
const LOSSES: usize = 1_100;
/// The same number for the controls.
const LOSSES_OF_CONTROL: usize = 160;
/// How many syncs behind the disk has to be that loses grants.
const LATE: usize = 6;
const THREADS: usize = 2;
const FILE: &str = "locks.db";
const BOOT: &str = "the boot before";

/// What a process told the disk, and where the record of that is.
struct Recorded {
    records: Vec<Record>,
    kept: PathBuf,
}

static RECORDED: LazyLock<Recorded> = LazyLock::new(|| {
    let kept = match env::var_os("LEASEHOLD_RECORD") {
        Some(kept) => PathBuf::from(kept),
        None => runtime().block_on(record()),
    };
    let records = log::read(&fs::read(&kept).unwrap());
    Recorded { records, kept }
});

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A folder for files that are opened once. It is in memory, if the host has such a place: the disk of the test is the
/// one of the record.
fn folder() -> TempDir {
    TempDir::new_in("/dev/shm").unwrap_or_else(|_| TempDir::new().unwrap())
}

/// Starts a process that does the work, and returns where its record is.
async fn record() -> PathBuf {
    let (folder, tools) = (folder(), folder());
    let library = preload::compiled(tools.path(), RECORD_WRITES);
    let library = library.await.unwrap();
    let files = fs::canonicalize(folder.path()).unwrap();
    let (file, kept) = (files.join(FILE), path().with_extension("record"));
    let boot = tools.path().join("boot");
    fs::write(&kept, "").unwrap();
    fs::write(&boot, BOOT).unwrap();
    let place = Place {
        kind: "sqlite",
        address: file.to_str().unwrap().to_owned(),
        name: kept.to_str().unwrap().to_owned(),
    };
    let ended = process(&place, &format!("record {SEED}"))
        .env("LD_PRELOAD", library)
        .env("LEASEHOLD_RECORDED", &files)
        .env("LEASEHOLD_RECORD", &kept)
        .env("LEASEHOLD_BOOT_ID", &boot)
        .output();
    let ended = ended.await.unwrap();
    assert!(ended.status.success(), "{ended:?}");
    is_complete(&log::read(&fs::read(&kept).unwrap()), &files);
    let boot: String = Connection::open(&file)
        .unwrap()
        .query_row("SELECT boot FROM clock", [], |row| row.get(0))
        .unwrap();
    assert_eq!(boot, BOOT);
    kept
}

/// Checks that the record makes the same files as the process did, and that everything happened that can happen to a
/// file.
fn is_complete(records: &[Record], files: &Path) {
    let mut disk = Disk::new(0);
    records.iter().for_each(|record| disk.apply(record));
    let seen = disk.seen();
    let names: Vec<_> = seen.keys().collect();
    assert_eq!(names, [FILE, "locks.db-lock", "locks.db-wal"]);
    for (name, bytes) in &seen {
        let there = fs::read(files.join(name)).unwrap();
        assert!(there == *bytes, "the record of {name} is not complete");
    }
    let count = |is: &dyn Fn(&Record) -> bool| records.iter().filter(|it| is(it)).count();
    let said = |is: fn(&Event) -> bool| {
        count(&|it| match it {
            Record::Said(event) => is(event),
            _ => false,
        })
    };
    let granted = said(|it| matches!(it, Event::Granted(_)));
    let ended = said(|it| matches!(it, Event::Released(_) | Event::Evicted { .. }));
    let done = said(|it| matches!(it, Event::Done { .. }));
    let permitted = said(|it| matches!(it, Event::Permitted(_)));
    let least = granted.min(ended).min(done).min(permitted);
    assert!(least >= 10, "{granted} {ended} {done} {permitted}");
    // The log is emptied before each close, and starts from its beginning once its pages are in the file.
    let log = records.iter().find_map(|it| match it {
        Record::Named(name, file) if name == "locks.db-wal" => Some(*file),
        _ => None,
    });
    let headers = count(&|it| matches!(it, Record::Written(_, 0, bytes) if bytes.len() == 32));
    let emptied = count(&|it| matches!(it, Record::Cut(file, 0) if Some(*file) == log));
    assert!(emptied >= 3 && headers >= 5, "{emptied} {headers}");
}

/// The outcome of the losses of power.
#[derive(Default)]
struct Outcome {
    points: usize,
    /// After how many of them at least one change was lost, at least one write was torn, or either of the two.
    lost: usize,
    torn: usize,
    incomplete: usize,
    harms: Vec<(usize, Harm, String)>,
}

impl Outcome {
    /// After how many losses of power each harm was seen.
    fn count(&self) -> BTreeMap<Harm, usize> {
        let mut points = BTreeMap::<_, BTreeSet<_>>::new();
        for (point, harm, _) in &self.harms {
            points.entry(*harm).or_default().insert(point);
        }
        let count = points.into_iter();
        count.map(|(harm, points)| (harm, points.len())).collect()
    }

    fn tell(&self, what: &str) {
        println!(
            "{what}: {} losses of power, {} with something lost or torn, {} lost, {} torn",
            self.points, self.incomplete, self.lost, self.torn
        );
        println!("{what}: {:?}", self.count());
    }
}

impl Recorded {
    /// The places at which the power is lost: this many that follow on a change, and a quarter as many others.
    fn points(&self, losses: usize) -> Vec<usize> {
        let is_change = |at: &usize| match &self.records[*at] {
            Record::Said(_) | Record::Synced(_) => false,
            Record::Named(..) | Record::Unnamed(_) | Record::Written(..) | Record::Cut(..) => true,
        };
        let all = 0..self.records.len();
        let (mut points, mut others): (Vec<_>, Vec<_>) = all.partition(is_change);
        let mut random = Rng::with_seed(SEED);
        random.shuffle(&mut points);
        random.shuffle(&mut others);
        points.truncate(losses);
        others.truncate(losses / 4);
        points.extend(others);
        points.sort_unstable();
        points
    }

    /// Loses the power at each of these places, on a disk that is this many syncs late, and checks what is left.
    fn lose_power(&self, points: &[usize], late: usize) -> Outcome {
        thread::scope(|scope| {
            let part = |number| scope.spawn(move || self.lose_at_some(points, number, late));
            let parts: Vec<_> = (0..THREADS).map(part).collect();
            let mut all = Outcome::default();
            for part in parts {
                let part = part.join().unwrap();
                all.points += part.points;
                all.lost += part.lost;
                all.torn += part.torn;
                all.incomplete += part.incomplete;
                all.harms.extend(part.harms);
            }
            all.harms.sort();
            all
        })
    }

    /// The share of one thread.
    fn lose_at_some(&self, points: &[usize], number: usize, late: usize) -> Outcome {
        let mut points = points.iter().skip(number).step_by(THREADS).peekable();
        let (mut disk, mut promised) = (Disk::new(late), Promised::default());
        let (runtime, mut outcome) = (runtime(), Outcome::default());
        for (at, record) in self.records.iter().enumerate() {
            disk.apply(record);
            if let Record::Said(event) = record {
                promised.hear(event);
            }
            if points.next_if_eq(&&at).is_none() {
                continue;
            }
            let left = disk.after_a_loss(&mut Rng::with_seed(SEED ^ at as u64));
            let folder = folder();
            left.write(folder.path());
            let harms = runtime.block_on(promised.harms(&folder.path().join(FILE)));
            outcome.points += 1;
            outcome.lost += usize::from(left.lost > 0);
            outcome.torn += usize::from(left.torn > 0);
            outcome.incomplete += usize::from(!left.is_complete());
            let harms = harms.into_iter().map(|(harm, text)| (at, harm, text));
            outcome.harms.extend(harms);
        }
        outcome
    }
}

#[test]
fn no_grant_is_lost_with_the_last_writes() {
    let losses = if long() { usize::MAX } else { LOSSES };
    let points = RECORDED.points(losses);
    let outcome = RECORDED.lose_power(&points, 0);
    outcome.tell("a disk that keeps what it was told");
    let some: Vec<_> = outcome.harms.iter().take(5).collect();
    assert!(
        some.is_empty(),
        "seed {SEED}, after these records: {some:#?}\n{:?}\nLEASEHOLD_RECORD={} tries the same again",
        outcome.count(),
        RECORDED.kept.display()
    );
    // If nothing was lost, the test proves nothing.
    let counts = [outcome.incomplete, outcome.lost, outcome.torn];
    assert!(counts[0] >= LEAST, "{counts:?}");
    assert!(counts[1].min(counts[2]) >= LEAST / 4, "{counts:?}");
}

/// The control: each way in which a promise can be broken is seen.
#[test]
fn a_disk_that_keeps_nothing_in_time_is_caught() {
    let points = RECORDED.points(LOSSES_OF_CONTROL);
    let late = RECORDED.lose_power(&points, LATE);
    late.tell("a disk that is late");
    let seen: Vec<_> = late.count().into_keys().collect();
    for harm in [
        Harm::GrantLost,
        Harm::RenewalLost,
        Harm::FenceLost,
        Harm::GrantedTwice,
        Harm::ReleaseUndone,
        Harm::TickForgotten,
        Harm::PermitsForgotten,
    ] {
        assert!(seen.contains(&harm), "{harm:?}: {seen:?}");
    }
    let never = RECORDED.lose_power(&points, usize::MAX);
    never.tell("a disk that keeps nothing");
    assert!(never.count().contains_key(&Harm::Broken));
}
