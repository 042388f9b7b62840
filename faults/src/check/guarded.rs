//! Whether the guards of documents let no late write through, as those saw it that read and wrote under leases.
//!
//! Invariants:
//!
//! - A write is late if a greater fence than its own has read or written the document before. It is judged by two things
//!   only: it was sent after the answer to the other one, or the document itself says what it came after.
//! - Of a write without an answer nothing is known: it may have been carried out, may never be, or may be still.
//! - All fences of a document are different, and each reads and writes it once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Kind, Newest, Violations};
use crate::{
    documents::Content,
    history::{Event, Time},
};

/// How the documents of a history were written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Guarded {
    /// How many writes the guard took.
    pub written: usize,
    /// How many it refused.
    pub refused: usize,
    /// How many late writes there were to documents without a guard.
    pub late_without: usize,
    pub violations: Violations,
}

/// Judges all documents of a history.
pub fn guarded(events: &[Event]) -> Guarded {
    let mut guarded = Guarded::default();
    for ((key, is_guarded), document) in documents(events) {
        let late = document.late();
        if !is_guarded {
            guarded.late_without += late.len();
            continue;
        }
        guarded.written += document.answered(true);
        guarded.refused += document.answered(false);
        let late = late
            .iter()
            .map(|fence| format!("the late write of {fence} got through"));
        let wrong = late.chain(document.lost());
        let wrong = wrong.map(|text| Kind::Guarded.of(format!("{key}: {text}")));
        guarded.violations.extend(wrong);
    }
    guarded
}

/// What is known of a document.
#[derive(Default)]
struct Document {
    /// What a fence was told, and when.
    reads: BTreeMap<i64, (Content, Time)>,
    writes: BTreeMap<i64, Write>,
}

struct Write {
    number: i64,
    sent: Time,
    /// Whether it was carried out, and when that was told.
    answer: Option<(bool, Time)>,
}

fn documents(events: &[Event]) -> BTreeMap<(&str, bool), Document> {
    let mut documents = BTreeMap::<_, Document>::new();
    for event in events {
        match event {
            Event::DocumentRead {
                key,
                guarded,
                fence,
                content,
                got,
            } => {
                let document = documents.entry((key.as_str(), *guarded)).or_default();
                document.reads.insert(*fence, (*content, *got));
            }
            Event::WriteAsked {
                key,
                guarded,
                fence,
                number,
                sent,
            } => {
                let document = documents.entry((key.as_str(), *guarded)).or_default();
                let write = Write {
                    number: *number,
                    sent: *sent,
                    answer: None,
                };
                document.writes.insert(*fence, write);
            }
            Event::WriteAnswered {
                key,
                guarded,
                fence,
                written,
                got,
            } => {
                let document = documents.entry((key.as_str(), *guarded)).or_default();
                if let Some(write) = document.writes.get_mut(fence) {
                    write.answer = Some((*written, *got));
                }
            }
            _ => {}
        }
    }
    documents
}

impl Document {
    /// How many writes were carried out, or refused.
    fn answered(&self, carried_out: bool) -> usize {
        let answers = self.writes.values().filter_map(|write| write.answer);
        answers
            .filter(|(written, _)| *written == carried_out)
            .count()
    }

    /// The fences whose writes were late and got through.
    fn late(&self) -> BTreeSet<i64> {
        let reads = self.reads.iter().map(|(fence, (_, got))| (*got, *fence));
        let writes = self.writes.iter().filter_map(|(fence, write)| {
            let (written, got) = write.answer?;
            written.then_some((got, *fence))
        });
        let newest: Newest = reads.chain(writes).collect();
        let is_late = |(fence, write): &(&i64, &Write)| {
            let carried_out = write.answer.is_some_and(|(written, _)| written);
            carried_out && newest.before(write.sent).is_some_and(|it| it > **fence)
        };
        let sent_late = self.writes.iter().filter(is_late).map(|(fence, _)| *fence);
        let contents = self.reads.values().map(|(content, _)| content);
        let over_a_greater = contents.filter(|it| it.over > it.writer);
        sent_late
            .chain(over_a_greater.map(|it| it.writer))
            .collect()
    }

    /// What claims read that they may not have read. The guard carries claims out in the order of their fences, and after a
    /// claim no write of one before it. So each claim reads what the claim before it has written, or what that has
    /// read.
    fn lost(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        // The number and its writer.
        let mut possible = vec![(0, 0)];
        for (fence, (content, _)) in &self.reads {
            let read = (content.number, content.writer);
            if !possible.contains(&read) {
                wrong.push(format!(
                    "{fence} read {read:?} as number and writer, and could read {possible:?}"
                ));
            }
            possible = match self.writes.get(fence) {
                None => vec![read],
                Some(write) => {
                    let written = (write.number, *fence);
                    match write.answer {
                        Some((true, _)) => vec![written],
                        Some((false, _)) => vec![read],
                        None => vec![read, written],
                    }
                }
            };
        }
        wrong
    }
}

#[cfg(test)]
mod tests;
