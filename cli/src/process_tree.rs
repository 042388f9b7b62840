//! All that a process has started, and what that has started, in whichever process group or session it is.
//!
//! On Linux this process becomes the parent of orphans, so that nothing leaves the family. Elsewhere it is
//! the process group.

use std::{collections::HashSet, fs};

use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group,
        test_kill_process_group, wait, waitpid,
    },
};

/// A process, as `/proc` tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    /// Whether it has ended, and nobody has asked how.
    is_over: bool,
}

/// From now on orphans among those that this process has started are its children.
pub fn become_subreaper() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(getpid()));
}

/// Sends a signal to each of the family, once; to those of a process group together, so that none of them
/// starts another meanwhile.
pub fn signal(group: Option<Pid>, signal: Signal) {
    let others = living(&all());
    if let Some(group) = group {
        let _ = kill_process_group(group, signal);
    }
    let number = group.map(|group| group.as_raw_nonzero().get());
    for other in others.iter().filter(|it| Some(it.group) != number) {
        let _ = kill_process(other.pid, signal);
    }
}

/// Whether all of it has ended. It clears the entries of all children, so nobody may wait for one any more.
///
/// The kernel is asked and not `/proc`, where one that starts another and ends may be seen dead while the
/// other is not on the list yet. Whoever of the family is alive is a child, or descends from one that is.
pub fn reap_all(group: Option<Pid>) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => break,
        }
    }
    // Elsewhere orphans are not adopted.
    cfg!(target_os = "linux") || group.is_none_or(|group| test_kill_process_group(group).is_err())
}

/// Clears the entries of those children that have ended, but for one, which somebody waits for.
pub fn reap_except(awaited: Pid) {
    let this = getpid().as_raw_nonzero().get();
    for process in all() {
        if process.parent == this && process.is_over && process.pid != awaited {
            let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
        }
    }
}

/// Those of the family of this process that have not ended.
fn living(all: &[Process]) -> Vec<Process> {
    let mut processes = descendants(all, getpid().as_raw_nonzero().get());
    processes.retain(|process| !process.is_over);
    processes
}

/// The descendants of this process.
fn descendants(all: &[Process], of: i32) -> Vec<Process> {
    let (mut processes, mut parents) = (Vec::new(), HashSet::from([of]));
    loop {
        let is_new = |it: &&Process| {
            let pid = it.pid.as_raw_nonzero().get();
            parents.contains(&it.parent) && !parents.contains(&pid)
        };
        let new: Vec<_> = all.iter().filter(is_new).copied().collect();
        if new.is_empty() {
            return processes;
        }
        parents.extend(new.iter().map(|it| it.pid.as_raw_nonzero().get()));
        processes.extend(new);
    }
}

/// Every process of the host that is to be seen.
fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name();
            name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
        })
        .filter_map(|entry| parse_stat(&fs::read_to_string(entry.path().join("stat")).ok()?))
        .collect()
}

/// Reads a line of `/proc/PID/stat`. The name, in brackets, may have anything in it.
fn parse_stat(line: &str) -> Option<Process> {
    let (pid, rest) = line.split_once(' ')?;
    let mut words = rest.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    Some(Process {
        pid: Pid::from_raw(pid.parse().ok()?)?,
        parent: words.next()?.parse().ok()?,
        group: words.next()?.parse().ok()?,
        is_over: matches!(state, "Z" | "X" | "x"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pid: i32, parent: i32) -> Process {
        parse_stat(&format!("{pid} (a name) of ) it) S {parent} 3 1 0 -1")).unwrap()
    }

    #[test]
    fn a_line_is_read_whatever_the_name_is() {
        let it = of(12, 7);
        assert_eq!(
            (
                it.pid.as_raw_nonzero().get(),
                it.parent,
                it.group,
                it.is_over
            ),
            (12, 7, 3, false)
        );
        assert!(parse_stat("12 (sh) Z 7 1").unwrap().is_over);
        for nonsense in ["", "12", "12 (sh", "x (sh) S 7", "12 (sh) S", "0 (sh) S 7"] {
            assert_eq!(parse_stat(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_family_are_all_that_descend_from_one() {
        // In no order, and with a process that is its own parent.
        let all = [
            of(5, 4),
            of(3, 2),
            of(4, 2),
            of(9, 9),
            of(2, 1),
            of(6, 5),
            of(8, 1),
        ];
        let found = descendants(&all, 2);
        let mut pids: Vec<_> = found
            .iter()
            .map(|it| it.pid.as_raw_nonzero().get())
            .collect();
        pids.sort_unstable();
        assert_eq!(pids, [3, 4, 5, 6]);
        assert_eq!(descendants(&all, 7), []);
    }
}
