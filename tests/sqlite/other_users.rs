//! Users who have other rights than the owner of the file.
//!
//! As root, the owner and the reader are two other users, in processes of their own. Otherwise they are the user of the
//! test, and what the reader may not do is forbidden to everybody while the reader does it.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Output,
};

use futures::TryStreamExt;
use leasehold::{Attempt, Error, Filter, Leases, SqliteStore};
use leasehold_tests::processes::process_of;
use rustix::process::geteuid;
use tempfile::TempDir;

use super::{LONG, between_processes::place, store_at};

const OWNER: u32 = 1234;
const READER: u32 = 65_534;

/// A file of locks in a folder in which everybody may make files, and remove only their own.
struct Shared {
    folder: TempDir,
    path: PathBuf,
}

impl Shared {
    /// A file that its owner has made, with a lock in it.
    async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        let path = folder.path().join("locks.db");
        let this = Self { folder, path };
        this.owner_can_write().await;
        this
    }

    async fn as_user(&self, user: u32, task: &str) -> String {
        // Another user may have no way to the binary, but may start it again.
        let program = if cfg!(target_os = "linux") {
            "/proc/self/exe".into()
        } else {
            env::current_exe().unwrap()
        };
        let mut command = process_of(&program, &place(&self.path), task);
        if geteuid().is_root() {
            command.uid(user).gid(user);
        }
        command.current_dir("/");
        let Output { status, stdout, .. } = command.output().await.unwrap();
        let said = String::from_utf8(stdout).unwrap();
        assert!(status.success(), "{said}");
        said
    }

    /// Does a task as a user who may only read the file.
    async fn as_reader(&self, task: &str) -> String {
        if !geteuid().is_root() {
            fs::set_permissions(&self.path, Permissions::from_mode(0o444)).unwrap();
        }
        let said = self.as_user(READER, task).await;
        fs::set_permissions(&self.path, Permissions::from_mode(0o644)).unwrap();
        said
    }

    async fn owner_can_write(&self) {
        let said = self.as_user(OWNER, "grant").await;
        assert!(said.contains("told granted"), "{said}");
    }

    /// The names of the files in the folder, with their owners and sizes.
    fn files(&self) -> BTreeMap<String, (u32, u64)> {
        let files = fs::read_dir(self.folder.path()).unwrap();
        let file = |entry: fs::DirEntry| {
            let data = entry.metadata().unwrap();
            let name = entry.file_name().into_string().unwrap();
            // The memory that the processes share is made anew by who opens the file first.
            let size = if name.ends_with("-shm") {
                0
            } else {
                data.len()
            };
            (name, (data.uid(), size))
        };
        files.map(|entry| file(entry.unwrap())).collect()
    }

    fn beside(&self, end: &str) -> PathBuf {
        format!("{}{end}", self.path.display()).into()
    }
}

/// The work of a process: it looks at the locks.
pub async fn look(path: &Path) {
    match SqliteStore::open_existing(path).await {
        Ok(store) => {
            let leases = Leases::new(store);
            let locks: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
            println!("\ntold seen {} 0", locks.len());
        }
        Err(error) => println!("\ntold refused 0 0\n{error}"),
    }
}

/// The work of a process: it acquires a lock.
pub async fn grant(path: &Path) {
    let granted = async {
        let leases = Leases::new(SqliteStore::open(path).await?);
        leases.try_acquire("key", LONG).await
    };
    match granted.await {
        Ok(Attempt::Acquired(lease)) => {
            println!("\ntold granted {} 0", lease.fence());
            lease.release().await.unwrap();
        }
        Ok(other) => panic!("{other:?}"),
        Err(error @ Error::File { .. }) => println!("\ntold refused 0 0\n{error}"),
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn who_may_only_read_the_file_can_look_and_changes_nothing() {
    let shared = Shared::new().await;
    let before = shared.files();
    assert_eq!(before.len(), 4, "{before:?}");
    let said = shared.as_reader("look").await;
    assert!(said.contains("told seen 1 "), "{said}");
    let said = shared.as_reader("grant").await;
    assert!(said.contains("this user may only read it"), "{said}");
    assert_eq!(shared.files(), before);
    shared.owner_can_write().await;
}

/// Who looks while others use the file sees what they have just written.
#[tokio::test]
async fn a_look_sees_what_is_only_in_the_log() {
    let shared = Shared::new().await;
    let leases = Leases::new(store_at(&shared.path).await);
    for key in ["a", "b", "c"] {
        leases.acquire(key, LONG).await.unwrap().detach().unwrap();
    }
    assert!(fs::metadata(shared.beside("-wal")).unwrap().len() > 0);
    let before = shared.files();
    let said = shared.as_reader("look").await;
    assert!(said.contains("told seen 4 "), "{said}");
    assert_eq!(shared.files(), before);
}

/// Otherwise the missing file would be the reader's, and the owner could not write it.
#[tokio::test]
async fn without_the_files_beside_it_a_look_is_refused() {
    let shared = Shared::new().await;
    for end in ["-wal", "-shm", "-lock"] {
        fs::remove_file(shared.beside(end)).unwrap();
        let before = shared.files();
        for task in ["look", "grant"] {
            let said = shared.as_reader(task).await;
            let is_named = said.contains(&format!("locks.db{end} is missing"));
            assert!(is_named, "{said}");
            assert_eq!(shared.files(), before);
        }
        shared.owner_can_write().await;
    }
}

#[tokio::test]
async fn a_file_beside_it_that_is_of_another_user_is_named() {
    let shared = Shared::new().await;
    let before = shared.files();
    for end in ["-wal", "-shm"] {
        let path = shared.beside(end);
        let owner = fs::metadata(&path).unwrap().uid();
        let other = if geteuid().is_root() { READER } else { owner };
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        chown(&path, Some(other), None).unwrap();
        let said = shared.as_user(OWNER, "grant").await;
        let words =
            format!("locks.db{end} belongs to user {other}, and this user may not write it");
        assert!(said.contains(&words), "{said}");
        assert!(
            said.contains(&format!("give it the owner (user {owner})")),
            "{said}"
        );
        chown(&path, Some(owner), None).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    }
    assert_eq!(shared.files(), before);
    shared.owner_can_write().await;
}

/// Root may look at everything, and must not shut the owner out.
#[tokio::test]
async fn what_root_makes_beside_the_file_is_of_its_owner() {
    let shared = Shared::new().await;
    let before = shared.files();
    for end in ["-wal", "-shm", "-lock"] {
        fs::remove_file(shared.beside(end)).unwrap();
    }
    drop(SqliteStore::open_existing(&shared.path).await.unwrap());
    assert_eq!(shared.files(), before);
    shared.owner_can_write().await;
}
