//! What the screen of `watch` shows: events come in, and what is to be done goes out. This file is pure.

use std::{collections::BTreeSet, time::Duration};

use chrono::{DateTime, Utc};
use leasehold::LockState;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::rows::{self, Entry, Id, Lease, Order};
use crate::{state, text};

/// What happens to the screen.
pub enum Event {
    /// A look has found these locks. It ended at this time of this host.
    Looked(Vec<LockState>, DateTime<Utc>),
    /// A look has failed for this reason, or has no answer yet. The next one may succeed.
    NotLooked(String),
    Key(KeyEvent),
    /// An eviction has ended: whether the lease had its key, or the error.
    Evicted(Lease, Result<bool, String>),
}

/// What is to be done after an event, besides drawing the screen anew.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    Evict(Lease),
    Quit,
    /// Ctrl-C, which a terminal in raw mode does not turn into a signal.
    Interrupt,
}

/// The time of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The store's.
    Store(DateTime<Utc>),
    /// This host's, because nothing is held whose state would have the store's.
    Host(DateTime<Utc>),
}

/// All that the screen shows.
pub struct View {
    pub place: String,
    pub interval: Duration,
    /// The last look that succeeded.
    pub looked: Option<At>,
    locks: Vec<LockState>,
    /// What the look before that one found, if there was one.
    before: Option<BTreeSet<Id>>,
    pub entries: Vec<Entry>,
    /// How wide the columns of the entries have to be.
    pub widths: [usize; 7],
    /// What the last look did not find any more.
    pub gone: Vec<Entry>,
    pub order: Order,
    pub selected: usize,
    /// The first entry that is drawn.
    pub top: usize,
    /// How many entries are drawn.
    page: usize,
    /// The lease that the question is about.
    pub question: Option<Lease>,
    /// What came of the last key.
    pub message: Option<String>,
    /// Why there is no newer look. The entries are old then.
    pub trouble: Option<String>,
}

impl View {
    pub fn new(place: &str, interval: Duration) -> Self {
        Self {
            place: text::visible(place).into_owned(),
            interval,
            looked: None,
            locks: Vec::new(),
            before: None,
            entries: Vec::new(),
            widths: state::widths([]),
            gone: Vec::new(),
            order: Order::default(),
            selected: 0,
            top: 0,
            page: 1,
            question: None,
            message: None,
            trouble: None,
        }
    }

    pub fn step(&mut self, event: Event) -> Effect {
        match event {
            Event::Looked(locks, at) => self.looked(locks, at),
            Event::NotLooked(reason) => self.trouble = Some(reason),
            Event::Key(key) => return self.key(key),
            Event::Evicted(lease, outcome) => self.message = Some(outcome_of(&lease, outcome)),
        }
        Effect::Nothing
    }

    /// How many keys, holders and processes that wait there are.
    pub fn counts(&self) -> [usize; 3] {
        let of = |count: fn(&LockState) -> usize| self.locks.iter().map(count).sum();
        [
            self.locks.len(),
            of(|it| it.holders.len()),
            of(|it| it.waiters.len()),
        ]
    }

    /// Scrolls so that the selected entry is among this many entries that are drawn.
    pub fn scroll(&mut self, page: usize) {
        self.page = page.max(1);
        let last = self.entries.len().saturating_sub(self.page);
        let lowest = (self.selected + 1).saturating_sub(self.page);
        self.top = self.top.min(last).clamp(lowest, self.selected);
    }

    fn looked(&mut self, mut locks: Vec<LockState>, at: DateTime<Utc>) {
        self.order.sort(&mut locks);
        self.before = self.looked.map(|_| self.ids());
        let newest = locks.iter().map(|lock| lock.now).max();
        self.looked = Some(newest.map_or(At::Host(at), At::Store));
        self.trouble = None;
        self.locks = locks;
        let before = self.show();
        self.gone = rows::gone(before, &self.entries);
        let ids = self.ids();
        let is_gone = |lease: &mut Lease| !ids.contains(&(lease.key.clone(), false, lease.id));
        if let Some(lease) = self.question.take_if(is_gone) {
            self.message = Some(outcome_of(&lease, Ok(false)));
        }
    }

    fn ids(&self) -> BTreeSet<Id> {
        self.entries.iter().map(Entry::id).collect()
    }

    /// Makes the entries anew, and returns the old ones. The selected entry stays selected while there is one.
    fn show(&mut self) -> Vec<Entry> {
        let selected = self.entries.get(self.selected).map(Entry::id);
        let entries = rows::entries(&self.locks, self.before.as_ref());
        let old = std::mem::replace(&mut self.entries, entries);
        self.widths = state::widths(self.entries.iter().map(|entry| &entry.row));
        let same = |entry: &Entry| Some(entry.id()) == selected;
        match self.entries.iter().position(same) {
            Some(index) => self.selected = index,
            None => self.select(self.selected),
        }
        old
    }

    fn select(&mut self, index: usize) {
        self.selected = index.min(self.entries.len().saturating_sub(1));
    }

    fn key(&mut self, key: KeyEvent) -> Effect {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Effect::Interrupt,
                _ => Effect::Nothing,
            };
        }
        if let Some(lease) = self.question.take() {
            return self.answer(lease, key.code);
        }
        self.message = None;
        match key.code {
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected + 1),
            KeyCode::PageUp => self.select(self.selected.saturating_sub(self.page)),
            KeyCode::PageDown => self.select(self.selected + self.page),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.order.sort(&mut self.locks);
                self.show();
            }
            KeyCode::Char('e') => self.ask(),
            KeyCode::Char('q') | KeyCode::Esc => return Effect::Quit,
            _ => {}
        }
        Effect::Nothing
    }

    fn ask(&mut self) {
        match self.entries.get(self.selected).map(Entry::lease) {
            Some(Some(lease)) => self.question = Some(lease),
            Some(None) => {
                let text = "this process waits, and has no lease to evict: select a holder";
                self.message = Some(text.to_owned());
            }
            None => self.message = Some("there is nobody to evict".to_owned()),
        }
    }

    /// Only `y` evicts. A key that is no answer changes nothing.
    fn answer(&mut self, lease: Lease, key: KeyCode) -> Effect {
        match key {
            KeyCode::Char('y' | 'Y') => {
                let (key, fence) = (text::name(lease.key.as_str()), lease.fence);
                self.message = Some(format!("evicting fence {fence} from {key}"));
                Effect::Evict(lease)
            }
            KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc | KeyCode::Enter => {
                self.message = Some("nobody was evicted".to_owned());
                Effect::Nothing
            }
            _ => {
                self.question = Some(lease);
                Effect::Nothing
            }
        }
    }
}

/// What came of an eviction.
pub fn outcome_of(lease: &Lease, outcome: Result<bool, String>) -> String {
    let (key, owner) = (text::name(lease.key.as_str()), text::name(&lease.owner));
    let fence = lease.fence;
    match outcome {
        Ok(true) => format!("{owner} lost {key} (fence {fence})"),
        Ok(false) => {
            format!("nobody was evicted: {owner} has {key} (fence {fence}) no more")
        }
        Err(error) => {
            let error = text::visible(&error);
            format!("evicting {owner} from {key} (fence {fence}) has failed: {error}")
        }
    }
}
