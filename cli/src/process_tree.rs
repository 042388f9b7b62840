//! The process tree below this process: its descendants, in any process group or session.
//!
//! On Linux this process becomes the parent of orphaned descendants, so that none leaves the tree. On other systems
//! only the processes of the command's group are found.

use std::{collections::HashSet, fs};

use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group,
        test_kill_process_group, wait, waitpid,
    },
};

/// A process, as `/proc` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    /// Whether the process has ended, and its parent has not read its exit status: a zombie.
    is_over: bool,
}

/// Makes this process the parent of descendants whose own parent ends. Does nothing on systems other than Linux.
pub fn become_subreaper() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(getpid()));
}

/// Whether a process of the tree is in this group. If not, and the leader of the group was reaped, a stranger may get
/// its number.
pub fn has_group(group: Pid) -> bool {
    if cfg!(not(target_os = "linux")) {
        return true;
    }
    let tree = living(&all());
    // `/proc` may hide processes. Then the group is all that is known of those that are left.
    is_in_group(&tree, group) || tree.is_empty() && !reap_all(None)
}

fn is_in_group(tree: &[Process], group: Pid) -> bool {
    let number = group.as_raw_nonzero().get();
    tree.iter().any(|process| process.group == number)
}

/// Sends a signal to each process of the tree, once. The processes of `group` get it by one call, so that none of them
/// can start another process in between.
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

/// Reaps all children that have ended. Returns whether no process of the tree is left. After this call, the exit status
/// of a child cannot be waited for any more.
///
/// The kernel answers this better than `/proc`. If a process starts another one and ends, `/proc` may show the first as
/// ended while the other is not on the list yet. Each live process of the tree is a child of this process, or descends
/// from one that is.
pub fn reap_all(group: Option<Pid>) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => break,
        }
    }
    // On other systems an orphan is no child of this process, but may still be in the group.
    cfg!(target_os = "linux") || group.is_none_or(|group| test_kill_process_group(group).is_err())
}

/// Reaps the children that have ended, except `awaited`, for whose exit status the caller waits.
pub fn reap_except(awaited: Pid) {
    let this = getpid().as_raw_nonzero().get();
    for process in all() {
        if process.parent == this && process.is_over && process.pid != awaited {
            let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
        }
    }
}

/// The processes of the tree that have not ended.
fn living(all: &[Process]) -> Vec<Process> {
    let mut processes = descendants(all, getpid().as_raw_nonzero().get());
    processes.retain(|process| !process.is_over);
    processes
}

/// The descendants of the process `of`.
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

/// All processes of the host that this user can see.
fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name();
            name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
        })
        .filter_map(|entry| {
            let line = fs::read(entry.path().join("stat")).ok()?;
            // The kernel cuts a name after 15 bytes, perhaps within a character.
            parse_stat(&String::from_utf8_lossy(&line))
        })
        .collect()
}

/// Parses a line of `/proc/PID/stat`. The name of the program, in brackets, may contain spaces and brackets.
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

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_is_found_whose_name_is_cut_within_a_character() {
        let program = std::env::temp_dir().join("резервирование");
        let _ = fs::remove_file(&program);
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let child = std::process::Command::new(&program).arg("600").spawn();
        let mut child = child.unwrap();
        let stat = fs::read(format!("/proc/{}/stat", child.id())).unwrap();
        let is_found = all().iter().any(|it| it.pid == Pid::from_child(&child));
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_file(&program).unwrap();
        assert!(
            String::from_utf8(stat).is_err(),
            "the name is cut elsewhere"
        );
        assert!(is_found);
    }

    #[test]
    fn a_group_is_of_the_tree_while_it_has_a_process() {
        let [group, other] = [3, 4].map(|number| Pid::from_raw(number).unwrap());
        assert!(is_in_group(&[of(12, 7)], group));
        assert!(!is_in_group(&[of(12, 7)], other));
        assert!(!is_in_group(&[], group));
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
    fn descendants_are_found_at_any_depth() {
        // The list is in no order, and has a process that is its own parent.
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
