//! Tests of errors, and of their messages.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    process::Stdio,
    thread,
};

use leasehold::store::LeaseId;
use leasehold_tests::engine::Engine;
use rustix::process::Signal;

use super::{Going, Place, leasehold, run, scratch};

#[test]
fn the_command_line_is_looked_at() {
    let place = Place::file();
    for words in [
        &["run", "job"][..],
        &["run", "job", "--ttl", "soon", "--", "true"],
        &["run", "job", "--permits", "two", "--", "true"],
        &["run", "job", "--permits", "3/2", "--", "true"],
        &["run", "job", "--permits", "1/2", "--shared", "--", "true"],
        &["run", "job", "--ttl", "100ms", "--", "true"],
        &["run", "job", "--ttl", "500000000y", "--", "true"],
        &["run", "job", "--ttl", "4s", "--grace", "3s", "--", "true"],
        &["run", "job", "--grace", "500000000y", "--", "true"],
        &["run", "", "--", "true"],
        &["watch", "--interval", "0s"],
        &["no such task"],
        &[],
    ] {
        let ended = run(place.command(words));
        assert_eq!(ended.code, 2, "{words:?}: {}", ended.all());
        assert!(!ended.err.is_empty(), "{words:?}");
    }
}

#[test]
fn an_address_that_leads_nowhere_is_never_repeated() {
    for (address, code) in [
        ("postgres://user:secret@host/app", 2),
        ("es+http://user:secret@host:9200/a?b=secret", 2),
        ("es+http://user:sec/secret@host:9200/a", 2),
        ("es+http://host:9200/a?secret@host:9200/a", 2),
        ("mongodb://user:secret@", 2),
        ("mongodb://user:1/secret@host", 2),
        ("mongodb://user:1/sec.secret@host/app", 2),
        ("mongodb://user:secret@127.0.0.1:1/app.", 2),
        ("mongodb://user:secret@127.0.0.1:1/.jobs", 2),
        ("mongodb://user:secret@127.0.0.1:1/app.a%20b", 2),
        (
            "mongodb://user:secret@127.0.0.1:1/app?serverSelectionTimeoutMS=100",
            69,
        ),
        ("es+http://user:secret@127.0.0.1:1/app", 69),
        ("opensearch+https://user:secret@127.0.0.1:1/app", 69),
        ("file:", 2),
        ("file:/no such folder/secret.db", 73),
    ] {
        let ended = Place(address.to_owned()).leasehold(["run", "job", "--", "true"]);
        let said = ended.saying(code);
        let named = address.starts_with("file:") || !said.contains("secret");
        assert!(named, "{address}: {said}");
        // The address is in the place of an option, and the key is missing.
        let mut wrong = leasehold();
        wrong.args(["--store", address, "run"]);
        let ended = run(wrong);
        assert!(!ended.saying(2).contains("secret"), "{}", ended.all());
    }
}

/// The option is not repeated either: what follows a question mark may be the rest of a password.
#[test]
fn an_option_that_mongodb_does_not_know_is_no_wrong_password() {
    for (options, told) in [
        ("retryWrite=true", "option 1 "),
        ("w=1&retryWrite=true", "retrywrites"),
        ("w=1&secret=1&appName=me", "option 2 "),
        ("w=1&secret", "option 2 "),
        ("maxPoolSize=many", "option 1 "),
        ("directConnection=true&srvMaxHosts=2", "option"),
    ] {
        let address = format!("mongodb://user:secret@127.0.0.1:1/app?{options}");
        let ended = Place(address).leasehold(["ls"]);
        let said = ended.saying(2);
        assert!(said.contains(told), "{options}: {said}");
        assert!(
            !said.contains("secret") && !said.contains("password"),
            "{said}"
        );
    }
    for address in [
        "mongodb://user:sec?ret=1@host/app",
        "mongodb://user:1?sec=ret@host",
    ] {
        let ended = Place(address.to_owned()).leasehold(["ls"]);
        assert!(
            ended.saying(2).contains("percent-encoded"),
            "{}",
            ended.all()
        );
        assert!(!ended.err.contains("ret@"), "{}", ended.all());
    }
}

#[test]
fn a_store_that_is_not_there_is_named_with_the_reason() {
    let options = "serverSelectionTimeoutMS=100";
    for words in [
        &["run", "job", "--", "true"][..],
        &["ls"],
        &["inspect", "job"],
        &["evict", "job", "--yes"],
        &["purge"],
        &["prepare"],
    ] {
        let place = Place(format!(
            "mongodb://user:secret@127.0.0.1:1,127.0.0.2:1/app?{options}"
        ));
        let ended = run(place.command(words));
        let said = ended.saying(69);
        assert!(
            said.contains("127.0.0.1:1") && said.contains("refused"),
            "{words:?}: {said}"
        );
        assert!(!said.contains("secret"), "{said}");
    }
}

/// The command line has an address in a place where an option or a key belongs.
#[test]
fn a_wrong_word_with_a_password_is_not_repeated() {
    for words in [
        &["mongodb:user:secret@host"][..],
        &["ls", "user:secret@host"],
        &["run", "job", "--ttl", "user:secret@host", "--", "true"],
        &[
            "ls",
            "--store=mongodb://user:secret@host",
            "--no-such-option",
        ],
    ] {
        let mut command = leasehold();
        command.args(words);
        let ended = run(command);
        assert!(
            !ended.saying(2).contains("secret"),
            "{words:?}: {}",
            ended.all()
        );
    }
}

#[test]
fn what_nobody_is_there_to_read_changes_no_code() {
    let place = Place::file();
    let holder = place.hold(["job"], "cat");
    for (words, code) in [
        (["run", "job", "--on-held=exit-0", "--", "true"], 0),
        (["run", "job", "--on-held=exit-75", "--", "true"], 75),
        (
            [
                "run",
                "other",
                "--ttl=30s",
                "--",
                "no-such-command-anywhere",
            ],
            127,
        ),
        (["run", "other", "--ttl=1ms", "--", "true"], 2),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = place.command(words).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(code), "{words:?}");
    }
    assert_eq!(holder.finish().0, 0);
}

#[test]
fn a_key_in_a_message_moves_no_cursor() {
    let place = Place::file();
    let key = "job\u{1b}]0;title\u{7}\u{9b}2J";
    let holder = place.hold([key], "cat");
    let refused = place.leasehold(["run", key, "--", "true"]);
    let said = refused.saying(75);
    assert!(
        !said.contains(char::is_control) && said.contains("job\\u{1b}]0;title"),
        "{said}"
    );
    let json = place.leasehold(["ls", "--json"]);
    assert!(
        !json.out.contains(['\u{1b}', '\u{7}', '\u{9b}']),
        "{}",
        json.out
    );
    assert_eq!(place.json(["ls", "--json"])[0]["key"], key);
    assert_eq!(holder.finish().0, 0);
}

/// As in a container whose files cannot be written, or where temporary files have long names.
#[test]
fn run_and_lead_need_no_temporary_folder() {
    for place in [Place::file(), Place::on(Engine::MongoDb)] {
        for folder in ["/no such folder", &format!("/tmp/{}", "long/".repeat(40))] {
            let ended = run({
                let mut command = place.command(["run", "job", "--", "echo", "ran"]);
                command.env("TMPDIR", folder);
                command
            });
            assert_eq!(ended.with(0), "ran");
            let mut lead = {
                let words = [
                    "lead",
                    "job",
                    "--",
                    "sh",
                    "-c",
                    "echo leads; exec sleep 1000",
                ];
                let mut command = place.command(words);
                command.env("TMPDIR", folder);
                Going::of(command)
            };
            assert_eq!(lead.line(), "leads");
            lead.signal(Signal::TERM);
            assert_eq!(lead.wait().0, 128 + 15);
        }
    }
}

#[test]
fn refused_credentials_have_a_code_of_their_own() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!(
        "es+http://user:secret@{}/app",
        listener.local_addr().unwrap()
    );
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let ended = Place(address).leasehold(["ls"]);
    let said = ended.saying(77);
    assert!(
        said.contains("refused the credentials") && !said.contains("secret"),
        "{said}"
    );
}

#[test]
fn without_an_address_the_locks_are_in_a_file_of_this_user() {
    let home = scratch().join(format!("home {}", LeaseId::random()));
    fs::create_dir(&home).unwrap();
    let of_user = |words: &[&str]| {
        let mut command = leasehold();
        command
            .env("HOME", &home)
            .env_remove("XDG_STATE_HOME")
            .args(words);
        run(command)
    };
    assert_eq!(of_user(&["ls", "--json"]).with(0), "[]");
    let once = &["run", "job", "--min-hold=1h", "--", "echo", "once"];
    assert_eq!(of_user(once).with(0), "once");
    of_user(once).saying(75);
    let folder = home.join(".local/state/leasehold");
    assert!(folder.join("locks.db").exists());
    let mode = fs::metadata(folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn who_looks_at_a_mistyped_path_makes_no_file() {
    let place = Place::file();
    let path = place.0.trim_start_matches("file:");
    for words in [
        &["ls"][..],
        &["inspect", "job"],
        &["watch"],
        &["evict", "job"],
        &["purge"],
        &["doctor"],
    ] {
        let ended = run(place.command(words));
        let is_doctor = words == ["doctor"];
        assert_eq!(ended.code, if is_doctor { 1 } else { 73 }, "{words:?}");
        let said = format!("{}{}", ended.out, ended.err);
        assert!(said.contains("leasehold prepare"), "{words:?}: {said}");
        assert!(!fs::exists(path).unwrap(), "{words:?}");
    }
    place.leasehold(["prepare"]).with(0);
    place.leasehold(["ls"]).with(0);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_trouble() {
    let place = Place::file();
    place.leasehold(["prepare"]).with(0);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = place.command(["doctor"]);
    let output = command.stdout(writer).stderr(Stdio::piped()).output();
    let output = output.unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
    // The codes are those that a reader of everything gets.
    for words in [&["inspect", "job"][..], &["evict", "job", "--yes"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = place.command(words).stdout(writer).status();
        assert_eq!(status.unwrap().code(), Some(1), "{words:?}");
    }
}

#[test]
fn the_doctor_says_that_nobody_is_there() {
    for address in [
        "mongodb://user:secret@127.0.0.1:1/app?serverSelectionTimeoutMS=100",
        "es+http://user:secret@127.0.0.1:1/app",
        "file:/no such folder/locks.db",
    ] {
        let ended = Place(address.to_owned()).leasehold(["doctor", "--json"]);
        let found: serde_json::Value = serde_json::from_str(ended.with(1)).unwrap();
        assert_eq!(found["healthy"], false);
        let findings = found["findings"].as_array().unwrap();
        let reach = findings
            .iter()
            .find(|it| it["what"] == "reachable")
            .unwrap();
        assert_eq!(reach["grade"], "bad", "{address}");
        assert!(!ended.out.contains("secret"), "{}", ended.all());
    }
    Place("nonsense".to_owned()).leasehold(["doctor"]).saying(2);
}

#[test]
fn a_home_that_takes_no_file_is_named() {
    let mut command = leasehold();
    command.env("XDG_STATE_HOME", "/proc/none").arg("ls");
    let ended = run(command);
    assert!(
        ended
            .saying(73)
            .contains("/proc/none/leasehold cannot be made"),
        "{}",
        ended.all()
    );
}

#[test]
fn completions_and_the_manual_know_every_task() {
    let tasks = [
        "run", "ls", "inspect", "acquire", "renew", "release", "evict", "watch", "purge",
        "prepare", "doctor",
    ];
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let mut command = leasehold();
        command.args(["completions", shell]);
        let ended = run(command);
        for task in tasks {
            assert!(ended.with(0).contains(task), "{shell} does not know {task}");
        }
        assert!(!ended.out.contains("supervise"), "{shell}");
    }
    let mut command = leasehold();
    command.arg("man");
    let ended = run(command);
    let manual = ended.with(0);
    assert!(
        manual.contains(".TH") && manual.contains("128+N"),
        "{manual}"
    );
    for task in tasks {
        assert!(manual.contains(task), "the manual does not know {task}");
    }
    assert!(!manual.contains("supervise"));
}

/// `docs/cli.md` contains each exit code and each option that the help contains.
#[test]
fn the_documentation_is_complete() {
    let document = include_str!("../../../docs/cli.md");
    let mut command = leasehold();
    command.arg("--help");
    let help = run(command);
    let (_, codes) = help.with(0).split_once("Exit codes:").unwrap();
    let codes: Vec<_> = codes
        .lines()
        .filter_map(|line| line.trim().split("  ").next())
        .filter(|code| code.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    assert!(codes.len() > 8, "{codes:?}");
    for code in codes {
        let row = format!("| {} |", code.replace('+', " + "));
        assert!(document.contains(&row), "{row}");
    }
    for task in [
        "run", "ls", "inspect", "acquire", "renew", "release", "evict", "watch", "purge",
        "prepare", "doctor",
    ] {
        let mut command = leasehold();
        command.args([task, "--help"]);
        let help = run(command);
        let words = help
            .with(0)
            .split(|c: char| c.is_whitespace() || "[],.:)=".contains(c));
        let names = |word: &&str| {
            word.starts_with("--") && word.len() > 2 || word.starts_with("LEASEHOLD_")
        };
        for name in words.filter(names) {
            assert!(
                name == "--help" || document.contains(name),
                "{task}: {name}"
            );
        }
    }
}

/// Each error names the host and the cause.
#[test]
fn a_mongodb_that_cannot_be_reached_is_named_with_the_cause() {
    let address = Engine::MongoDbReplicaSet.address();
    let (_, rest) = address.split_once("://").unwrap();
    let host = rest.split(['/', '?', ',']).next().unwrap();
    let secret = "me:hunter2@";
    for (host, at, options, cause) in [
        ("127.0.0.1:9", secret, "", "Connection refused"),
        ("no-such-host.invalid", secret, "", "lookup"),
        (host, "", "tls=true", "tls"),
        (host, "", "replicaSet=wrong", "wrong"),
    ] {
        let mut command = leasehold();
        let address = format!("mongodb://{at}{host}/app?{options}");
        command.args(["ls", "--store", &address]);
        let ended = run(command);
        let said = ended.saying(69);
        assert!(said.contains(host) && said.contains(cause), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn a_mistyped_address_is_answered_with_the_one_that_was_meant() {
    for (address, meant) in [
        ("localhost:27017", "mongodb://localhost:27017"),
        ("mongo://localhost", "mongodb://localhost"),
        ("./locks.db", "file:./locks.db"),
    ] {
        let mut command = leasehold();
        command.args(["ls", "--store", address]);
        let ended = run(command);
        assert!(ended.saying(2).contains(&format!("did you mean {meant}?")));
    }
}

#[test]
fn what_the_library_does_is_shown_on_request() {
    let place = Place::file();
    let quiet = place.leasehold(["run", "job", "--", "true"]);
    assert_eq!(quiet.saying(0), "");
    let told = place.leasehold(["run", "--verbose", "job", "--", "true"]);
    let said = told.saying(0);
    for event in ["acquired", "released", "job"] {
        assert!(said.contains(event), "{said}");
    }
    assert!(!said.contains('\u{1b}'), "it is no terminal: {said}");
}
