//! Tests of the screen of `leasehold watch`. The terminal is one that a shell has, as that of a user.

use std::{
    fs::{self, File},
    io::Read,
    num::NonZero,
    process::Command,
    time::Instant,
};

use leasehold::{
    Key, Store,
    store::{LeaseId, ReleaseRequest},
};
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::{
    Place, TIMEOUT, scratch,
    terminal::{Terminal, resize},
    until, waiters,
};

/// Runs the command, and then says how it has ended, and how it leaves the terminal. The shell survives the signal that
/// ends the command.
const SCRIPT: &str = r#"trap : TERM; "$@"; echo "code $?"; stty -a; echo end"#;

/// The screen of a terminal in which a shell runs `leasehold watch`.
struct Screen {
    terminal: Terminal,
    emulator: vt100::Parser,
    /// All bytes that came.
    bytes: Vec<u8>,
}

impl Screen {
    fn watch(place: &Place) -> Self {
        Self::new(place, SCRIPT)
    }

    /// The arguments of the script are the command.
    fn new(place: &Place, script: &str) -> Self {
        let watch = place.command(["watch", "--interval", "50ms"]);
        // It makes the terminal the controlling one of the shell.
        let mut shell = Command::new("setsid");
        shell.args(["--ctty", "sh", "-c", script, "sh"]);
        shell.arg(watch.get_program()).args(watch.get_args());
        for (name, value) in watch.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let [rows, columns] = [24, 100].map(|it| NonZero::new(it).unwrap());
        Self {
            terminal: Terminal::run(shell, Some((100, 24))),
            emulator: vt100::Parser::new(rows, columns, 0),
            bytes: Vec::new(),
        }
    }

    /// Reads until the screen is like this, and returns its text.
    fn until(&mut self, what: &str, is: impl Fn(&vt100::Screen) -> bool) -> String {
        let (mut bytes, end) = ([0; 4_096], Instant::now() + TIMEOUT);
        while !is(self.emulator.screen()) {
            // It is drawn anew for ever, so a read always comes back.
            let shown = self.emulator.screen().contents();
            assert!(Instant::now() < end, "{what} never came: {shown}");
            match self.terminal.screen.read(&mut bytes) {
                Ok(number @ 1..) => {
                    self.bytes.extend(&bytes[..number]);
                    self.emulator.process(&bytes[..number]);
                }
                _ => panic!("{what} never came: {shown}"),
            }
        }
        self.emulator.screen().contents()
    }

    /// Reads until this text is on the screen of `watch`.
    fn shows(&mut self, text: &str) -> String {
        self.until(text, |it| {
            it.alternate_screen() && it.contents().contains(text)
        })
    }

    fn shows_not(&mut self, text: &str) -> String {
        self.until(text, |it| !it.contents().contains(text))
    }

    /// Reads until `watch` has ended and the terminal is restored: the screen of the shell, its cursor, and a terminal
    /// that shows what is typed. Returns the exit code.
    fn ends(&mut self) -> String {
        let text = self.until("it ends", |it| {
            !it.alternate_screen() && it.contents().contains("\nend")
        });
        assert!(!self.emulator.screen().hide_cursor());
        for mode in ["icanon", "echo", "isig"] {
            assert!(
                text.split_whitespace().any(|it| it == mode),
                "{mode}: {text}"
            );
        }
        let code = text.lines().find_map(|line| line.strip_prefix("code "));
        code.unwrap_or_else(|| panic!("{text}")).to_owned()
    }

    fn count(&self, sequence: &str) -> usize {
        let sequence = sequence.as_bytes();
        let all = self.bytes.windows(sequence.len());
        all.filter(|it| *it == sequence).count()
    }
}

#[test]
fn a_screen_shows_who_holds_and_leaves_the_terminal_as_it_was() {
    let place = Place::file();
    place.leasehold(["prepare"]).with(0);
    let mut screen = Screen::watch(&place);
    screen.shows("nobody holds anything here");
    assert_eq!(
        (screen.count("\u{1b}[?1049h"), screen.count("\u{1b}[?1049l")),
        (1, 0)
    );
    let name = "\u{1b}[2Jme";
    let holder = place.hold(["a key of a kind", "--owner", name], "cat");
    let text = screen.shows("a key of a kind");
    let row = text.lines().find(|line| line.contains("a key of a kind"));
    assert!(row.unwrap().contains("\\u{1b}[2Jme"), "{text}");
    assert!(
        text.contains("keys 1  holders 1  waiting 0  every 50ms"),
        "{text}"
    );
    assert_eq!(holder.finish().0, 0);
    screen.shows("nobody holds anything here");
    screen.terminal.types("q");
    assert_eq!(screen.ends(), "0");
    assert_eq!(
        (screen.count("\u{1b}[?1049h"), screen.count("\u{1b}[?1049l")),
        (1, 1)
    );
}

#[test]
fn each_way_out_restores_the_terminal() {
    let place = Place::file();
    let holder = place.hold(["job"], "cat");
    let end = |how: fn(&mut Screen)| {
        let mut screen = Screen::watch(&place);
        screen.shows("job");
        how(&mut screen);
        screen.ends()
    };
    let terminated = end(|screen| {
        let group = Pid::from_raw(screen.terminal.child.id().try_into().unwrap());
        kill_process_group(group.unwrap(), Signal::TERM).unwrap();
    });
    assert_eq!(terminated, "143");
    // A terminal in raw mode makes no signal of Ctrl-C.
    assert_eq!(end(|screen| screen.terminal.types("\u{3}")), "130");
    assert_eq!(end(|screen| screen.terminal.types("\u{1b}")), "0");
    assert_eq!(holder.finish().0, 0);
}

/// It ends when its terminal is gone, also without the signal that says so.
#[test]
fn a_screen_ends_with_its_terminal() {
    let place = Place::file();
    let holder = place.hold(["job"], "cat");
    for (ignore, codes) in [
        // The signal and the failure of a write come at the same time.
        ("", &["129", "70"][..]),
        // The first words of the command would end that the signal is ignored. No look shows that the terminal is gone.
        (
            r#"trap "" HUP; shift 2; set -- "$1" watch --interval 1h;"#,
            &["70"],
        ),
    ] {
        let ended = scratch().join(LeaseId::random().to_string());
        let ended_at = ended.display();
        let script = format!(
            r#"trap : HUP; {ignore} "$@"; echo $? >{ended_at}.new; mv {ended_at}.new {ended_at}"#
        );
        let mut screen = Screen::new(&place, &script);
        screen.shows("job");
        screen.terminal.screen = File::open("/dev/null").unwrap();
        let found = until(|| fs::read_to_string(&ended).ok());
        assert!(codes.contains(&found.trim()), "{ignore} {found}");
    }
    assert_eq!(holder.finish().0, 0);
}

#[test]
fn an_error_is_printed_after_the_terminal_is_restored() {
    let place = Place::file();
    let holder = place.hold(["job"], "cat");
    let mut screen = Screen::watch(&place);
    screen.shows("job");
    let connection = Connection::open(place.0.trim_start_matches("file:")).unwrap();
    connection.execute("DROP TABLE locks", []).unwrap();
    assert_eq!(screen.ends(), "70");
    let text = screen.emulator.screen().contents();
    assert!(text.contains("no such table"), "{text}");
    drop(holder);
}

#[test]
fn a_lease_that_is_evicted_by_a_key_is_the_one_that_was_asked_about() {
    let place = Place::file();
    let (first, other) = ("first", "other");
    place
        .leasehold([
            "run",
            "job a",
            "--min-hold",
            "1h",
            "--owner",
            first,
            "--",
            "true",
        ])
        .with(0);
    for owner in [first, other] {
        let share = [
            "run",
            "job b",
            "--shared",
            "--min-hold",
            "1h",
            "--owner",
            owner,
            "--",
            "true",
        ];
        place.leasehold(share).with(0);
    }
    let held = || -> Vec<(String, String)> {
        let locks = place.json(["ls", "--json"]);
        let locks = locks.as_array().unwrap().iter();
        locks
            .flat_map(|lock| {
                let holders = lock["holders"].as_array().unwrap().iter();
                holders.map(|it| {
                    let text = |value: &Value| value.as_str().unwrap().to_owned();
                    (text(&lock["key"]), text(&it["owner"]))
                })
            })
            .collect()
    };
    let all = held();
    assert_eq!(all.len(), 3);
    let mut screen = Screen::watch(&place);
    screen.shows("holders 3");
    // The row of the first holder of the second key.
    screen.terminal.types("je");
    let question = format!("evict the lease of {first} on job b (fence ");
    screen.shows(&question);
    screen.terminal.types("n");
    screen.shows("nobody was evicted");
    assert_eq!(held(), all);
    screen.terminal.types("e");
    screen.shows(&question);
    screen.terminal.types("y");
    screen.shows("first lost job b (fence ");
    screen.shows("holders 2");
    let left = [("job a", first), ("job b", other)].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(held(), left);
    screen.terminal.types("q");
    assert_eq!(screen.ends(), "0");
}

/// What came of an eviction is said, also if the screen is left before.
#[test]
fn an_eviction_that_was_asked_for_is_carried_out() {
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
    let mut screen = Screen::watch(&place);
    screen.shows("job");
    screen.terminal.types("eyq");
    assert_eq!(screen.ends(), "0");
    assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
}

#[tokio::test]
async fn a_screen_shows_who_waits() {
    let place = Place::file();
    let store = waiters::store(&place).await;
    let key = Key::new("job").unwrap();
    let holder = waiters::wait_for(&store, &key).await;
    let mut screen = Screen::watch(&place);
    let text = screen.shows("2 of 2 waiting: shared");
    assert!(text.contains("1 of 2 waiting: exclusive"), "{text}");
    assert!(text.contains("holders 1  waiting 2"), "{text}");
    store
        .release(&ReleaseRequest::new(key, holder))
        .await
        .unwrap();
    screen.terminal.types("q");
    assert_eq!(screen.ends(), "0");
}

#[test]
fn a_screen_is_drawn_for_the_size_of_the_terminal() {
    let place = Place::file();
    let key = format!("tenant-{}/end", "1".repeat(20));
    let holder = place.hold([key.as_str(), "--owner", "me"], "cat");
    let mut screen = Screen::watch(&place);
    screen.shows(&key);
    for (columns, rows) in [(60, 10), (1, 1), (100, 24)] {
        let [lines, width] = [rows, columns].map(|it| NonZero::new(it).unwrap());
        screen.emulator.screen_mut().set_size(lines, width);
        resize(&screen.terminal.screen, (columns, rows));
        match columns {
            60 => screen.shows("…"),
            1 => screen.shows_not("…"),
            _ => screen.shows(&key),
        };
    }
    screen.terminal.types("q");
    assert_eq!(screen.ends(), "0");
    assert_eq!(holder.finish().0, 0);
}

/// Without a terminal to read keys from, or with one that has no such screen, it prints lines.
#[test]
fn lines_are_printed_where_no_screen_can_be() {
    let place = Place::file();
    let holder = place.hold(["job", "--owner", "me"], "cat");
    for script in [
        r#""$@" </dev/null"#,
        r#"TERM=dumb "$@""#,
        r#"stty cols 0; "$@""#,
        r#""$@" --json"#,
        // The terminal shows what the library does, too.
        r#""$@" --verbose"#,
    ] {
        let mut screen = Screen::new(&place, script);
        let is_a_line = |line: &str| line.contains("held") && line.contains("me");
        screen.until("a line", |it| it.contents().lines().any(is_a_line));
        assert_eq!(screen.count("\u{1b}[?1049h"), 0, "{script}");
    }
    assert_eq!(holder.finish().0, 0);
}

#[test]
fn a_screen_without_colours_has_none() {
    let place = Place::file();
    let holder = place.hold(["job"], "cat");
    let is_coloured = |it: &vt100::Screen| {
        (0..24).any(|row| {
            (0..100).any(|column| {
                let cell = it.cell(row, column).unwrap();
                cell.fgcolor() != vt100::Color::Default
            })
        })
    };
    let is_reversed = |it: &vt100::Screen| it.cell(3, 4).unwrap().inverse();
    for (script, coloured) in [(r#""$@""#, true), (r#"NO_COLOR=1 "$@""#, false)] {
        let mut screen = Screen::new(&place, script);
        screen.shows("job");
        let shown = screen.emulator.screen();
        assert_eq!((is_coloured(shown), is_reversed(shown)), (coloured, true));
    }
    assert_eq!(holder.finish().0, 0);
}
