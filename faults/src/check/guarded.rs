//! Checks that the guards of documents let no late write through, by what the clients saw that read and wrote under
//! leases.
//!
//! Invariants:
//!
//! - A write is late if a greater fence than its own has read or written the document before. Only two things show
//!   this: the write was sent after the answer to the other fence, or the document itself says which write this one
//!   came after.
//! - The outcome of a write without an answer is unknown: it may have been carried out, it may be carried out later, or
//!   never.
//! - All fences of a document are different. Each fence reads the document once and writes it once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Kind, Newest, Violations};
use crate::{
    documents::Content,
    history::{Event, Time},
};

/// How the documents of a history were written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Guarded {
    /// How many writes the guard accepted.
    pub written: usize,
    /// How many writes the guard refused.
    pub refused: usize,
    /// How many late writes there were to documents without a guard.
    pub late_without: usize,
    pub violations: Violations,
}

/// Checks all documents of a history.
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
    /// What each fence read, and when.
    reads: BTreeMap<i64, (Content, Time)>,
    writes: BTreeMap<i64, Write>,
}

struct Write {
    number: i64,
    sent: Time,
    /// Whether the write was carried out, and when the answer arrived.
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
    /// How many writes were answered: as carried out, or as refused.
    fn answered(&self, carried_out: bool) -> usize {
        let answers = self.writes.values().filter_map(|write| write.answer);
        answers
            .filter(|(written, _)| *written == carried_out)
            .count()
    }

    /// The fences whose late writes were accepted.
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

    /// Claims that read something that they cannot have read. The guard carries out claims in the order of their
    /// fences, and after a claim it accepts no write of an earlier fence. So each claim reads what the claim before it
    /// has written, or what that claim has read.
    fn lost(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        // The number and the fence of its writer.
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
