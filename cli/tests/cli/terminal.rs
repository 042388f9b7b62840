//! Tests of the output to a terminal.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    process::{Child, Command},
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use leasehold::Key;

use super::{Place, waiters};

/// A terminal with a command in it.
pub(super) struct Terminal {
    pub(super) screen: File,
    pub(super) child: Child,
    pub(super) seen: String,
}

impl Terminal {
    fn of<const N: usize>(place: &Place, words: [&str; N]) -> Self {
        Self::with(place, words, |it| it.env_remove("NO_COLOR"))
    }

    fn with<const N: usize>(
        place: &Place,
        words: [&str; N],
        set: fn(&mut Command) -> &mut Command,
    ) -> Self {
        Self::new(place, words, set, None)
    }

    /// A terminal with this many columns, or of an unknown size.
    fn new<const N: usize>(
        place: &Place,
        words: [&str; N],
        set: fn(&mut Command) -> &mut Command,
        columns: Option<u16>,
    ) -> Self {
        let mut command = place.command(words);
        set(command.env("TERM", "xterm-256color"));
        Self::run(command, columns.map(|columns| (columns, 24)))
    }

    /// A terminal with this many columns and rows, or of an unknown size, and this command in it.
    pub(super) fn run(mut command: Command, size: Option<(u16, u16)>) -> Self {
        let screen =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        let screen = File::from(screen);
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        if let Some(size) = size {
            resize(&screen, size);
        }
        let name = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
        let line = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(&name)
                .unwrap()
        };
        let child = command
            .stdin(line())
            .stdout(line())
            .stderr(line())
            .spawn()
            .unwrap();
        // This closes the copies of the terminal in this process, so that a read of the terminal ends when the command
        // ends.
        drop(command);
        Self {
            screen,
            child,
            seen: String::new(),
        }
    }

    /// Reads until this text is on the screen.
    pub fn sees(&mut self, text: &str) {
        while !self.seen.contains(text) {
            self.sees_more(text);
        }
    }

    /// Reads what comes next, in the hope for this text.
    pub fn sees_more(&mut self, text: &str) {
        let mut bytes = [0; 4_096];
        match self.screen.read(&mut bytes) {
            Ok(number @ 1..) => self.seen += &String::from_utf8_lossy(&bytes[..number]),
            _ => panic!("{text:?} never came: {:?}", self.seen),
        }
    }

    /// Reads until the command has ended, and returns the lines on the screen.
    fn lines(&mut self) -> Vec<String> {
        let mut bytes = [0; 4_096];
        while let Ok(number @ 1..) = self.screen.read(&mut bytes) {
            self.seen += &String::from_utf8_lossy(&bytes[..number]);
        }
        self.seen.lines().map(str::to_owned).collect()
    }

    pub(super) fn types(&mut self, text: &str) {
        self.screen.write_all(text.as_bytes()).unwrap();
    }

    pub fn code(&mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }
}

/// Makes a terminal this many columns and rows large.
pub(super) fn resize(screen: &File, (columns, rows): (u16, u16)) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(screen, size).unwrap();
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_eviction_asks_first() {
    let place = Place::file();
    place
        .leasehold([
            "run",
            "job",
            "--min-hold",
            "1h",
            "--owner",
            "me",
            "--",
            "true",
        ])
        .with(0);
    for no in ["n\n", "\n", "what\n"] {
        let mut terminal = Terminal::of(&place, ["evict", "job"]);
        terminal.sees("Evict them? [y/N]");
        terminal.types(no);
        terminal.sees("nobody was evicted");
        assert_eq!(terminal.code(), 1);
        assert_eq!(place.json(["inspect", "job", "--json"])["held"], true);
    }
    let mut terminal = Terminal::of(&place, ["evict", "job"]);
    terminal.sees("me");
    terminal.sees("Evict them? [y/N]");
    terminal.types("y\n");
    terminal.sees("job is free");
    assert_eq!(terminal.code(), 0);
    assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
}

#[test]
fn an_eviction_spares_who_was_not_shown() {
    let place = Place::file();
    let first = place.hold(["job", "--owner", "first"], "cat");
    let mut terminal = Terminal::of(&place, ["evict", "job"]);
    terminal.sees("first");
    terminal.sees("Evict them? [y/N]");
    assert_eq!(first.finish().0, 0);
    let second = place.hold(["job", "--owner", "second"], "cat");
    terminal.types("y\n");
    terminal.sees("another holder");
    assert_eq!(terminal.code(), 1);
    assert_eq!(second.finish().0, 0);
}

/// Keys are cut so that a line fits, and a fence never is.
#[test]
fn a_table_fits_the_terminal() {
    let place = Place::file();
    let key = |end| format!("tenant-{}/{end}", "1".repeat(90));
    let holders = ["a", "b"].map(|end| {
        let (key, owner) = (key(end), format!("{}-{end}", "host".repeat(20)));
        place.hold(
            [key.as_str(), "--owner", &owner, "--note", "nightly"],
            "cat",
        )
    });
    let locks = place.json(["ls", "--json"]);
    let mut terminal = Terminal::new(&place, ["ls"], |it| it.env("NO_COLOR", "1"), Some(80));
    let lines = terminal.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for (line, (lock, end)) in lines[1..]
        .iter()
        .zip(locks.as_array().unwrap().iter().zip(["a", "b"]))
    {
        assert!(line.chars().count() <= 80, "{line}");
        assert!(line.contains(&lock["fence"].to_string()), "{line}");
        let (shown, _) = line.trim_start().split_once(' ').unwrap();
        assert!(
            shown.starts_with("ten") && shown.contains('…') && shown.ends_with(end),
            "{line}"
        );
        assert_eq!(lock["key"], key(end));
    }
    // A line that goes to a program is not cut.
    assert!(place.leasehold(["ls"]).with(0).contains(&key("a")));
    for holder in holders {
        assert_eq!(holder.finish().0, 0);
    }
}

/// The number of a process that waits is never cut.
#[tokio::test]
async fn a_table_that_fits_shows_who_comes_first() {
    let place = Place::file();
    let key = Key::new(format!("tenant-{}", "1".repeat(90))).unwrap();
    waiters::wait_for(&waiters::store(&place).await, &key).await;
    let mut terminal = Terminal::new(&place, ["ls"], |it| it.env("NO_COLOR", "1"), Some(73));
    let lines = terminal.lines();
    assert!(lines.iter().all(|it| it.chars().count() <= 73), "{lines:?}");
    for (line, number) in lines[2..].iter().zip(["1 of 2", "2 of 2"]) {
        assert!(line.contains(number), "{line}");
    }
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[test]
fn colours_are_for_a_terminal() {
    let place = Place::file();
    place.leasehold(["prepare"]).with(0);
    let mut terminal = Terminal::of(&place, ["doctor"]);
    terminal.sees("\u{1b}[32mok");
    assert!(!place.leasehold(["doctor"]).with(0).contains('\u{1b}'));
    // A free key is shown in grey.
    place.leasehold(["run", "job", "--", "true"]).with(0);
    let mut terminal = Terminal::of(&place, ["ls", "--all"]);
    terminal.sees("\u{1b}[");
    let plain = place.leasehold(["ls", "--all"]);
    assert!(plain.with(0).contains("job") && !plain.out.contains('\u{1b}'));
}

/// The question of an eviction goes to standard error. What is done under the key is shown in grey.
#[test]
fn an_eviction_asks_without_colours_if_there_are_to_be_none() {
    let place = Place::file();
    for option in [["--tick", "7"], ["--min-hold", "1h"]] {
        let [name, value] = option;
        let run = ["run", "job", name, value, "--", "true"];
        place.leasehold(run).with(0);
    }
    let mut terminal = Terminal::of(&place, ["evict", "job"]);
    terminal.sees("Evict them? [y/N]");
    let control = &terminal.seen;
    assert!(control.contains('\u{1b}'), "the control: {control:?}");
    let mut terminal = Terminal::with(&place, ["evict", "job"], |it| it.env("NO_COLOR", "1"));
    terminal.sees("Evict them? [y/N]");
    assert!(!terminal.seen.contains('\u{1b}'), "{:?}", terminal.seen);
}

/// Control characters in a name or a note do nothing to the terminal.
#[test]
fn what_moves_the_cursor_is_only_shown() {
    let place = Place::file();
    let holder = place.hold(["job", "--owner", "\u{1b}[2Jme", "--note", "a\nb"], "cat");
    let plain = place.leasehold(["ls"]);
    let text = plain.with(0);
    assert!(
        text.contains("\\u{1b}[2Jme") && text.contains("a\\nb"),
        "{text}"
    );
    assert_eq!(holder.finish().0, 0);
}

/// The terminal is not that of the session, so the command cannot be given it.
#[test]
fn a_command_at_a_terminal_reads_nothing() {
    let place = Place::file();
    let script = "cat; test -t 1 && echo it is a terminal";
    let mut terminal = Terminal::of(&place, ["run", "job", "--", "sh", "-c", script]);
    terminal.sees("it is a terminal");
    assert_eq!(terminal.code(), 0);
}
