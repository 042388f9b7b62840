//! Finds the process at the other end of a connection on this machine, with `/proc` of Linux.
//!
//! This is written by hand, because it runs for each connection: a library that reads everything about every socket and
//! process took most of a core.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result};

/// The process that has a socket on this port, connected to that port or listening. The likely processes are searched
/// first.
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

/// The nearest of these processes that is this process or an ancestor of it.
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

/// The inode of the socket from this port to that port, in a table of sockets.
fn inode(table: &str, port: u16, to: u16) -> Option<String> {
    let (port, to) = (format!(":{port:04X}"), format!(":{to:04X}"));
    table.lines().find_map(|line| {
        // Most lines belong to other sockets.
        if !line.contains(&port) {
            return None;
        }
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, local, remote, _, _, _, _, _, _, inode, ..] = words[..] else {
            return None;
        };
        // A closed socket in the state TIME_WAIT has no inode.
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

/// Whether a process has this socket. The process may end during the search, and processes of other users cannot be
/// read.
fn has(process: i32, socket: &str) -> bool {
    fs::read_dir(format!("/proc/{process}/fd")).is_ok_and(|files| {
        files
            .flatten()
            .any(|file| fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == socket))
    })
}
