//! A user who may only read the file of the locks.
//!
//! As root, the owner and the reader are two other users. Otherwise they are the user of the tests, and what the reader
//! may not do is forbidden to everybody while the reader does it.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::PathBuf,
};

use rustix::process::geteuid;
use tempfile::TempDir;

use super::{Ended, Place, leasehold_at, run};

const OWNER: u32 = 1234;
const READER: u32 = 65_534;

/// A file of locks in a folder in which everybody may make files, and remove only their own.
struct Shared {
    folder: TempDir,
    place: Place,
}

impl Shared {
    /// A file that its owner has made, with a lock in it.
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        // Another user may have no way to the folder in which it was built.
        let program = env!("CARGO_BIN_EXE_leasehold");
        let copy = folder.path().join("leasehold");
        let linked = fs::hard_link(program, &copy);
        linked
            .or_else(|_| fs::copy(program, &copy).map(drop))
            .unwrap();
        let place = Place(format!("file:{}", folder.path().join("locks.db").display()));
        let this = Self { folder, place };
        this.owner_can_write();
        this
    }

    fn file(&self, end: &str) -> PathBuf {
        self.folder.path().join(format!("locks.db{end}"))
    }

    fn as_user(&self, user: u32, words: &[&str]) -> Ended {
        let mut command = leasehold_at(&self.folder.path().join("leasehold"));
        if geteuid().is_root() {
            command.uid(user).gid(user);
        }
        command.env("LEASEHOLD_STORE", &self.place.0).args(words);
        command.current_dir("/");
        run(command)
    }

    /// Runs the command as a user who may only read the file.
    fn as_reader(&self, words: &[&str]) -> Ended {
        if !geteuid().is_root() {
            fs::set_permissions(self.file(""), Permissions::from_mode(0o444)).unwrap();
        }
        let ended = self.as_user(READER, words);
        fs::set_permissions(self.file(""), Permissions::from_mode(0o644)).unwrap();
        ended
    }

    fn owner_can_write(&self) {
        let ended = self.as_user(OWNER, &["run", "nightly", "--", "echo", "done"]);
        assert_eq!(ended.with(0), "done", "{}", ended.all());
    }

    /// The names of the files in the folder, with their owners.
    fn owners(&self) -> BTreeMap<String, u32> {
        let files = fs::read_dir(self.folder.path()).unwrap();
        let file = |entry: fs::DirEntry| {
            let owner = entry.metadata().unwrap().uid();
            (entry.file_name().into_string().unwrap(), owner)
        };
        files.map(|entry| file(entry.unwrap())).collect()
    }
}

/// Looks, and what each shows to a user who may only read the file.
const LOOKS: [(&[&str], &str); 3] = [
    (&["ls", "--all"], "nightly"),
    (&["inspect", "nightly"], "nightly"),
    (&["doctor"], "this user may only read it"),
];
const RUN: &[&str] = &["run", "nightly", "--", "echo", "done"];

#[test]
fn who_may_only_read_the_file_can_look_and_shuts_nobody_out() {
    let shared = Shared::new();
    let before = shared.owners();
    for (look, shown) in LOOKS {
        let ended = shared.as_reader(look);
        assert!(ended.out.contains(shown), "{look:?}: {}", ended.all());
    }
    let refused = shared.as_reader(RUN);
    assert!(!refused.out.contains("done"), "{}", refused.all());
    let said = refused.saying(73);
    assert!(said.contains("this user may only read it"), "{said}");
    assert_eq!(shared.owners(), before);
    shared.owner_can_write();
}

/// Otherwise the missing file would be the reader's, and the owner could not write it.
#[test]
fn without_the_files_beside_it_a_look_is_refused() {
    let shared = Shared::new();
    for end in ["-wal", "-shm", "-lock"] {
        fs::remove_file(shared.file(end)).unwrap();
        let before = shared.owners();
        for words in LOOKS.map(|(look, _)| look).into_iter().chain([RUN]) {
            let refused = shared.as_reader(words);
            let named = format!("locks.db{end} is missing");
            assert!(refused.all().contains(&named), "{}", refused.all());
            assert_eq!(shared.owners(), before);
        }
        shared.owner_can_write();
    }
}
