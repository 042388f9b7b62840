//! Tests of the screen without a terminal.

mod drawing;

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::TryStreamExt;
use leasehold::{
    Filter, Key, Leases, LockState, MemoryStore, Store,
    store::{AcquireRequest, LeaseId, Turn},
};
use ratatui::{
    Terminal,
    backend::TestBackend,
    buffer::{Buffer, Cell},
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

use super::{
    draw::draw,
    rows::{Lease, Order},
    view::{Effect, Event, View},
};

const TTL: Duration = Duration::from_secs(3_600);

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// The lock of a key with a holder and these processes that wait.
async fn lock(name: &str, owner: &str, waiters: &[&str]) -> LockState {
    let store = MemoryStore::new();
    let request =
        |owner: &str| AcquireRequest::exclusive(key(name), LeaseId::random(), owner.into(), TTL);
    store.acquire(&request(owner)).await.unwrap();
    for waiter in waiters {
        let turn = Turn::in_turn(LeaseId::random(), Duration::from_secs(60));
        store.acquire(&request(waiter).turn(turn)).await.unwrap();
    }
    let leases = Leases::new(store);
    let locks: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
    locks.into_iter().next().unwrap()
}

fn view() -> View {
    View::new("db.example, app.locks", Duration::from_secs(1))
}

fn look(view: &mut View, locks: &[LockState]) {
    let event = Event::Looked(locks.to_vec(), DateTime::UNIX_EPOCH);
    assert_eq!(view.step(event), Effect::Nothing);
}

fn press(view: &mut View, code: impl Into<KeyCode>) -> Effect {
    view.step(Event::Key(KeyEvent::new(code.into(), KeyModifiers::NONE)))
}

fn typed(view: &mut View, c: char) -> Effect {
    press(view, KeyCode::Char(c))
}

fn drawn(view: &mut View, columns: u16, rows: u16, has_colours: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal
        .draw(|frame| draw(frame, view, has_colours))
        .unwrap();
    terminal.backend().buffer().clone()
}

/// The lines on a screen of this many columns and rows.
fn screen(view: &mut View, columns: u16, rows: u16) -> Vec<String> {
    let buffer = drawn(view, columns, rows, true);
    let lines = buffer.content.chunks(columns.into());
    let text = |cells: &[Cell]| -> String { cells.iter().map(|cell| cell.symbol()).collect() };
    lines.map(|line| text(line).trim_end().to_owned()).collect()
}

/// The keys of the entries, in their order.
fn keys(view: &View) -> Vec<&str> {
    view.entries.iter().map(|it| it.key.as_str()).collect()
}

fn owners(view: &View) -> Vec<&str> {
    view.entries.iter().map(|it| &*it.owner).collect()
}

/// Which entries are new, by their owners.
fn new(view: &View) -> Vec<&str> {
    let new = view.entries.iter().filter(|it| it.is_new);
    new.map(|it| &*it.owner).collect()
}

fn gone(view: &View) -> Vec<&str> {
    view.gone.iter().map(|it| &*it.owner).collect()
}

fn lease(lock: &LockState) -> Lease {
    Lease {
        key: lock.key.clone(),
        id: lock.holders[0].lease,
        owner: lock.holders[0].owner.clone(),
        fence: lock.holders[0].fence,
    }
}

/// A mark says what one look found and the look before did not; nothing is said of what was between them.
#[tokio::test]
async fn what_has_changed_since_the_last_look_is_marked() {
    let [a, b, c] = [
        lock("a", "1", &[]).await,
        lock("b", "2", &["3"]).await,
        lock("c", "4", &[]).await,
    ];
    let mut view = view();
    look(&mut view, &[a.clone(), b.clone()]);
    assert_eq!((new(&view), gone(&view)), (vec![], vec![]));
    look(&mut view, &[b.clone(), c.clone()]);
    assert_eq!((new(&view), gone(&view)), (vec!["4"], vec!["1"]));
    let lines = screen(&mut view, 100, 10);
    assert!(lines[5].starts_with(" + c"), "{lines:?}");
    let fence = a.holders[0].fence;
    assert_eq!(lines[7], format!("gone: a (1, fence {fence})"));
    // Another order, and a look that fails, change no mark.
    typed(&mut view, 's');
    view.step(Event::NotLooked("no answer".to_owned()));
    assert_eq!((new(&view), gone(&view)), (vec!["4"], vec!["1"]));
    look(&mut view, &[b.clone(), c.clone()]);
    assert_eq!((new(&view), gone(&view)), (vec![], vec![]));
    // Who waited holds the key now: it is not gone, but its lease is new.
    let mut granted = b.clone();
    granted.waiters.clear();
    granted.holders[0].lease = b.waiters[0].waiter;
    granted.holders[0].owner = "3".into();
    look(&mut view, &[granted]);
    assert_eq!((new(&view), gone(&view)), (vec!["3"], vec!["2", "4"]));
}

#[tokio::test]
async fn the_keys_are_sorted_as_asked() {
    let mut locks = [
        lock("a", "young", &[]).await,
        lock("b", "old", &[]).await,
        lock("c", "waited for", &["w"]).await,
    ];
    let now = Utc::now();
    for (lock, (age, left)) in locks.iter_mut().zip([(1, 30), (9, 20), (5, 10)]) {
        lock.holders[0].acquired_at = now - TimeDelta::seconds(age);
        lock.holders[0].expires_at = now + TimeDelta::seconds(left);
    }
    locks.reverse();
    let mut view = view();
    look(&mut view, &locks);
    for (order, expected) in [
        (Order::Key, ["a", "b", "c", "c"]),
        (Order::Age, ["b", "c", "c", "a"]),
        (Order::Expiry, ["c", "c", "b", "a"]),
        (Order::Waiting, ["c", "c", "a", "b"]),
        (Order::Key, ["a", "b", "c", "c"]),
    ] {
        assert_eq!((view.order, &*keys(&view)), (order, &expected[..]));
        look(&mut view, &locks);
        assert_eq!(keys(&view), expected);
        // The row that was selected is selected still.
        assert_eq!(view.entries[view.selected].key.as_str(), "a");
        typed(&mut view, 's');
    }
}

#[tokio::test]
async fn the_selection_follows_its_row() {
    let mut locks = Vec::new();
    for number in 0..30 {
        locks.push(lock(&format!("job {number:02}"), "me", &[]).await);
    }
    let mut view = view();
    look(&mut view, &locks);
    // Ten of the lines are rows.
    screen(&mut view, 100, 16);
    let selected = |view: &View| view.entries[view.selected].key.to_string();
    for (code, expected) in [
        (KeyCode::Up, "job 00"),
        (KeyCode::Down, "job 01"),
        (KeyCode::Char('j'), "job 02"),
        (KeyCode::Char('k'), "job 01"),
        (KeyCode::PageDown, "job 11"),
        (KeyCode::End, "job 29"),
        (KeyCode::PageDown, "job 29"),
        (KeyCode::PageUp, "job 19"),
        (KeyCode::Home, "job 00"),
        (KeyCode::PageDown, "job 10"),
    ] {
        assert_eq!(press(&mut view, code), Effect::Nothing);
        assert_eq!(selected(&view), expected);
        let lines = screen(&mut view, 100, 16);
        let marked: Vec<_> = lines.iter().filter(|it| it.starts_with('>')).collect();
        assert!(
            marked.len() == 1 && marked[0].contains(expected),
            "{lines:?}"
        );
    }
    look(&mut view, &locks[5..]);
    assert_eq!(selected(&view), "job 10");
    look(&mut view, &locks[..3]);
    assert_eq!(selected(&view), "job 02");
    look(&mut view, &[]);
    assert_eq!(typed(&mut view, 'e'), Effect::Nothing);
    assert_eq!(view.question, None);
}

#[tokio::test]
async fn an_eviction_asks_first() {
    let locks = [lock("a", "1", &["waits"]).await, lock("b", "2", &[]).await];
    let mut view = view();
    look(&mut view, &locks);
    typed(&mut view, 'j');
    typed(&mut view, 'e');
    assert_eq!(view.question, None, "it has no lease");
    assert!(screen(&mut view, 100, 10)[8].contains("this process waits"));
    typed(&mut view, 'j');
    typed(&mut view, 'e');
    let (asked, fence) = (lease(&locks[1]), locks[1].holders[0].fence);
    let question = format!("evict the lease of 2 on b (fence {fence})? y/n");
    assert_eq!(screen(&mut view, 100, 10)[8], question);
    // These keys are no answer.
    for code in [
        KeyCode::Up,
        KeyCode::Char('e'),
        KeyCode::Char('x'),
        KeyCode::Char('s'),
    ] {
        assert_eq!(press(&mut view, code), Effect::Nothing);
        assert_eq!(view.question.as_ref(), Some(&asked));
    }
    for code in [
        KeyCode::Char('n'),
        KeyCode::Char('q'),
        KeyCode::Esc,
        KeyCode::Enter,
    ] {
        assert_eq!(press(&mut view, code), Effect::Nothing);
        assert_eq!(view.question, None);
        assert_eq!(screen(&mut view, 100, 10)[8], "nobody was evicted");
        assert_eq!(typed(&mut view, 'y'), Effect::Nothing, "nothing was asked");
        typed(&mut view, 'e');
    }
    assert_eq!(typed(&mut view, 'y'), Effect::Evict(asked.clone()));
    for (outcome, said) in [
        (Ok(true), format!("2 lost b (fence {fence})")),
        (
            Ok(false),
            format!("nobody was evicted: 2 has b (fence {fence}) no more"),
        ),
        (
            Err("denied\n".to_owned()),
            format!("evicting 2 from b (fence {fence}) has failed: denied\\n"),
        ),
    ] {
        view.step(Event::Evicted(asked.clone(), outcome));
        assert_eq!(screen(&mut view, 100, 10)[8], said);
    }
    typed(&mut view, 'j');
    assert_eq!(screen(&mut view, 100, 10)[8], "");
}

#[tokio::test]
async fn a_question_about_a_lease_that_is_gone_is_withdrawn() {
    let job = lock("job", "first", &[]).await;
    let mut next = job.clone();
    next.holders[0].lease = LeaseId::random();
    let mut view = view();
    look(&mut view, std::slice::from_ref(&job));
    typed(&mut view, 'e');
    look(&mut view, std::slice::from_ref(&job));
    assert_eq!(view.question, Some(lease(&job)));
    look(&mut view, &[next]);
    assert_eq!(view.question, None);
    assert!(screen(&mut view, 100, 10)[8].starts_with("nobody was evicted: first has job"));
    assert_eq!(typed(&mut view, 'y'), Effect::Nothing);
}

#[test]
fn keys_end_it() {
    let mut view = view();
    assert_eq!(typed(&mut view, 'q'), Effect::Quit);
    assert_eq!(press(&mut view, KeyCode::Esc), Effect::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.step(Event::Key(interrupt)), Effect::Interrupt);
    assert_eq!(typed(&mut view, 'c'), Effect::Nothing);
    let control_e = KeyEvent::new(KeyCode::Char('e'), KeyModifiers::CONTROL);
    assert_eq!(view.step(Event::Key(control_e)), Effect::Nothing);
}

#[tokio::test]
async fn ctrl_c_ends_it_at_a_question_too() {
    let mut view = view();
    look(&mut view, &[lock("job", "first", &[]).await]);
    typed(&mut view, 'e');
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.step(Event::Key(interrupt)), Effect::Interrupt);
}
