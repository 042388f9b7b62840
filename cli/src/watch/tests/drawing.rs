//! Tests of what is drawn.

use ratatui::{
    buffer::Buffer,
    style::{Color, Modifier},
};

use super::{super::view::Event, drawn, lock, look, owners, screen, typed, view};

#[tokio::test]
async fn the_screen_has_holders_and_who_waits() {
    let mut view = view();
    assert_eq!(screen(&mut view, 100, 10)[1].find("not seen yet"), Some(0));
    look(
        &mut view,
        &[lock("job", "first", &["writer", "reader"]).await],
    );
    let lines = screen(&mut view, 100, 10);
    assert_eq!(lines[0], "leasehold watch: db.example, app.locks");
    for part in ["UTC  keys 1  holders 1  waiting 2  every 1s", "order: key"] {
        assert!(lines[1].contains(part), "{lines:?}");
    }
    assert!(lines[2].starts_with("   KEY") && lines[2].contains("HOLDER"));
    assert!(lines[3].starts_with(">  job  exclusive") && lines[3].contains("first"));
    assert!(lines[4].contains("1 of 2 waiting: exclusive") && lines[4].contains("writer"));
    assert!(lines[5].contains("2 of 2 waiting: exclusive") && lines[5].contains("reader"));
    assert!(lines[9].contains("q quit"), "{lines:?}");
    look(&mut view, &[]);
    let lines = screen(&mut view, 100, 10);
    assert!(
        lines[1].starts_with("1970-01-01 00:00:00 UTC (of this host)"),
        "{lines:?}"
    );
    assert_eq!(lines[2], "nobody holds anything here");
}

#[tokio::test]
async fn the_line_of_what_is_gone_fits() {
    let mut view = view();
    let names = ["one", "two", "three", "four"];
    let mut locks = Vec::new();
    for name in names {
        locks.push(lock(name, "me", &[]).await);
    }
    look(&mut view, &locks);
    look(&mut view, &[]);
    for width in (1..150).step_by(3) {
        let line = screen(&mut view, width, 10)[7].clone();
        if width > 8 {
            let named = names
                .iter()
                .filter(|name| line.contains(&format!("{name} (")))
                .count();
            let rest = match 4 - named {
                0 => true,
                4 => line == "gone: 4",
                rest => line.ends_with(&format!(", and {rest} more")),
            };
            assert!(rest, "{line}");
        }
    }
}

#[tokio::test]
async fn after_a_failed_look_the_table_is_marked_as_old() {
    let mut view = view();
    view.step(Event::NotLooked("no answer".to_owned()));
    let lines = screen(&mut view, 100, 10);
    assert!(
        lines[1].starts_with("not seen yet") && lines[8] == "no answer",
        "{lines:?}"
    );
    let job = [lock("job", "first", &[]).await];
    look(&mut view, &job);
    assert!(!screen(&mut view, 100, 10)[1].starts_with("OLD"));
    view.step(Event::NotLooked("no\u{1b}[2J answer".to_owned()));
    let lines = screen(&mut view, 100, 10);
    assert!(
        lines[1].starts_with("OLD 20") && lines[3].contains("first"),
        "{lines:?}"
    );
    assert_eq!(lines[8], "no\\u{1b}[2J answer");
    look(&mut view, &job);
    let lines = screen(&mut view, 100, 10);
    assert!(
        !lines[1].starts_with("OLD") && lines[8].is_empty(),
        "{lines:?}"
    );
}

/// No size is too small, and a fence is whole or not there.
#[tokio::test]
async fn every_size_can_be_drawn() {
    let long = format!("tenant-{}/report", "锁1".repeat(60));
    let owner = "host-".repeat(30);
    let locks = [
        lock(&long, &owner, &["\u{1b}[2Jme", "b\nc"]).await,
        lock("job", "me", &[]).await,
    ];
    let fence = locks[0].holders[0].fence.to_string();
    let mut view = view();
    look(&mut view, &locks);
    look(&mut view, &locks[..1]);
    view.step(Event::NotLooked("no answer".to_owned()));
    for question in [false, true] {
        if question {
            typed(&mut view, 'e');
        }
        for columns in (1..40).chain((40..120).step_by(9)) {
            for rows in [1, 2, 9] {
                let lines = screen(&mut view, columns, rows);
                let row = lines
                    .iter()
                    .find(|it| it.starts_with("> ") && it.contains('…'));
                let digits = |text: &str| text.contains(&fence[..6]);
                if let Some(row) = row.filter(|row| digits(row)) {
                    assert!(row.contains(&fence), "{columns} x {rows}: {lines:?}");
                }
                if question && columns >= 34 {
                    let asked = lines.iter().any(|it| {
                        it.starts_with("evict ") && it.contains(&fence) && it.ends_with("? y/n")
                    });
                    assert!(asked, "{columns} x {rows}: {lines:?}");
                }
            }
        }
        let wide = screen(&mut view, 119, 20);
        assert!(wide[3].contains(&fence), "{wide:?}");
        assert!(
            wide.iter().any(|it| it.contains("\\u{1b}[2Jme")),
            "{wide:?}"
        );
    }
    for size in [(0, 0), (0, 5), (5, 0)] {
        drawn(&mut view, size.0, size.1, true);
    }
}

/// Without colours the marks and the reversed row tell the same.
#[tokio::test]
async fn colours_are_left_out_if_there_are_to_be_none() {
    let mut view = view();
    look(&mut view, &[]);
    look(&mut view, &[lock("job", "first", &["waits"]).await]);
    view.step(Event::NotLooked("no answer".to_owned()));
    let is_coloured = |buffer: &Buffer| buffer.content.iter().any(|it| it.fg != Color::Reset);
    assert!(is_coloured(&drawn(&mut view, 80, 12, true)), "the control");
    let plain = drawn(&mut view, 80, 12, false);
    assert!(!is_coloured(&plain));
    assert!(plain.content.iter().all(|it| it.bg == Color::Reset));
    assert!(plain[(4, 3)].modifier.contains(Modifier::REVERSED));
    assert_eq!(owners(&view), ["first", "waits"]);
}
