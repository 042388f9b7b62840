//! The default store of a user: a file of locks.

use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt};

use etcetera::{BaseStrategy, choose_base_strategy};

use super::exit::Failure;

/// Returns the address of the file in this user's state folder. Creates the folder if it does not exist, but not the
/// file.
pub fn of_this_user() -> Result<String, Failure> {
    let nowhere = || {
        Failure::Usage("this user has no home: name a store with --store or LEASEHOLD_STORE".into())
    };
    let folders = choose_base_strategy().map_err(|_| nowhere())?;
    // Not every system has a state folder.
    let folder = folders.state_dir().unwrap_or_else(|| folders.data_dir());
    let folder = folder.join("leasehold");
    // Other users must not read keys and notes.
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder);
    made.map_err(|error| {
        let folder = folder.display();
        Failure::NoPlace(format!(
            "{folder} cannot be made: {error}; name a store with --store or LEASEHOLD_STORE"
        ))
    })?;
    let file = folder.join("locks.db");
    match file.to_str() {
        Some(path) => Ok(format!("file:{path}")),
        None => Err(nowhere()),
    }
}
