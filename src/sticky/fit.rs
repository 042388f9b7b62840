//! `Fit`: whether an acquire of a key that stays here is granted from memory.

use super::stay::Stay;
use crate::model::Access;

/// What an acquire wants of a key that stays here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) access: Access,
    pub(crate) owner: &'a str,
    pub(crate) note: Option<&'a str>,
    pub(crate) reentrant: bool,
    /// Whether the acquire needs the document of the key.
    pub(crate) needs_document: bool,
    /// Whether the lease shows a fence.
    pub(crate) has_fence: bool,
}

/// Where an acquire of a key that stays here is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// From memory.
    Local,
    /// By the store, beside the lease that stays.
    Beside,
    /// By the store, after the lease that stays has gone back.
    After,
}

impl Stay {
    fn is_shared(&self) -> bool {
        self.stored().request().access == Access::Shared
    }

    /// Where this acquire is granted.
    pub(crate) fn fit(&self, wanted: Wanted<'_>) -> Fit {
        let request = self.stored().request();
        // A reentrant lease enters that of another task, which the document names.
        let has_note = wanted.reentrant || wanted.note == request.note.as_deref();
        let is_same = *wanted.owner == *request.owner && has_note;
        let can_be_local = is_same && !wanted.needs_document;
        match (self.is_shared(), wanted.access) {
            (false, Access::Exclusive | Access::Shared) if can_be_local => Fit::Local,
            (true, Access::Shared) if can_be_local && !wanted.has_fence => Fit::Local,
            (true, Access::Shared) => Fit::Beside,
            _ => Fit::After,
        }
    }
}
