//! Which process is at the other end of a connection on this machine, as Linux tells in `/proc`.
//!
//! By hand, because it is asked for each connection: a library that reads all there is of every socket
//! and process took most of a core.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result};

/// The process that has a socket on this port, connected to that one or listening. Those that are
/// likely are looked at first.
pub fn process_at(port: u16, to: Option<u16>, likely: &BTreeSet<i32>) -> Result<i32> {
    let socket = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .find_map(|table| inode(&fs::read_to_string(table).ok()?, port, to.unwrap_or(0)))
        .with_context(|| format!("nobody is at port {port}"))?;
    let socket = format!("socket:[{socket}]");
    let others = processes()?;
    let others = others.iter().filter(|process| !likely.contains(process));
    let owner = likely.iter().chain(others).find(|it| has(**it, &socket));
    Ok(*owner.context("no process has the socket")?)
}

/// Whether the process is one of these, or a descendant of one; and of which.
pub fn ancestor_in(mut process: i32, these: impl Fn(i32) -> bool) -> Option<i32> {
    while process > 1 {
        if these(process) {
            return Some(process);
        }
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        process = parent.trim().parse().ok()?;
    }
    None
}

/// In a table of sockets, that from this port to that one.
fn inode(table: &str, port: u16, to: u16) -> Option<String> {
    let (port, to) = (format!(":{port:04X}"), format!(":{to:04X}"));
    table.lines().find_map(|line| {
        // Most lines are of others.
        if !line.contains(&port) {
            return None;
        }
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, local, remote, _, _, _, _, _, _, inode, ..] = words[..] else {
            return None;
        };
        // What is closed and waits has none.
        let it = local.ends_with(&port) && remote.ends_with(&to) && inode != "0";
        it.then(|| inode.to_owned())
    })
}

fn processes() -> Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect())
}

/// It may end while it is looked at, and those of other users are not for everybody to see.
fn has(process: i32, socket: &str) -> bool {
    fs::read_dir(format!("/proc/{process}/fd")).is_ok_and(|files| {
        files
            .flatten()
            .any(|file| fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == socket))
    })
}
