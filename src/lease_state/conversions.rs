//! `Conversions`: which conversions of a lease have no answer, and may still change it. Pure.
//!
//! In the store the modes of a lease have one order: an exclusive lease becomes shared and keeps its fence, and a
//! shared one becomes exclusive with a greater fence. A conversion names the fence that its sender knows, and the store
//! changes no lease with another one. So a request that is carried out late changes the lease only while the lease has
//! that fence and not the mode that the request asks for.

use serde::{Deserialize, Serialize};

use crate::model::{Conversion, Fence, Mode};

/// The conversions that were sent for one lease.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conversions {
    /// How many upgrades name the present fence and have no answer. Each may have given the lease another fence, or may
    /// still do so.
    pub(super) upgrades: u32,
    /// How many downgrades name the present fence and have no answer.
    pub(super) downgrades: u32,
    /// Whether any upgrade was sent, of whatever fence.
    pub(super) upgraded: bool,
}

/// Which kinds of conversions have no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unanswered {
    pub(crate) upgrades: bool,
    pub(crate) downgrades: bool,
}

impl Conversions {
    fn unanswered_of(&mut self, conversion: Conversion) -> &mut u32 {
        match conversion {
            Conversion::Upgrade => &mut self.upgrades,
            Conversion::Downgrade => &mut self.downgrades,
        }
    }

    pub(super) fn sent(&mut self, conversion: Conversion) {
        self.upgraded |= conversion == Conversion::Upgrade;
        let unanswered = self.unanswered_of(conversion);
        *unanswered = unanswered.saturating_add(1);
    }

    /// Records that one which names the present fence is answered, or was not carried out.
    pub(super) fn answered(&mut self, conversion: Conversion) {
        let unanswered = self.unanswered_of(conversion);
        *unanswered = unanswered.saturating_sub(1);
    }

    /// Records that the lease has another fence. The conversions that name an earlier one change nothing any more.
    pub(super) fn fence_changed(&mut self) {
        (self.upgrades, self.downgrades) = (0, 0);
    }

    /// Whether a greater fence in an answer can be that of an upgrade of this lease without an answer. `mode` is the
    /// last known one of the lease.
    pub(super) fn explains_greater_fence(&self, mode: Mode) -> bool {
        // An upgrade changes an exclusive lease only after a downgrade.
        let was_shared = mode == Mode::Shared || self.downgrades > 0;
        was_shared && self.upgrades > 0
    }

    /// Whether the opposite conversion is sent before the wanted one: it has no answer, and could still undo the wanted
    /// one. After both, the lease has another fence than the one without an answer names.
    pub(super) fn opposite_comes_first(
        &self,
        wanted: Conversion,
        mode: Mode,
        fence: Fence,
        sent: Opposites,
    ) -> bool {
        let is_needed = match wanted {
            // The mode does not tell whether one of the downgrades was carried out.
            Conversion::Upgrade => self.downgrades > 0,
            Conversion::Downgrade => self.upgrades > 0 && mode == Mode::Shared,
        };
        is_needed && sent.last_for != Some(fence) && sent.times < Opposites::MOST
    }
}

/// The opposite conversions that one call has sent before the wanted one, and that were carried out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opposites {
    times: u32,
    /// The fence that the last one named. The wanted conversion comes next for a lease with that fence.
    last_for: Option<Fence>,
}

impl Opposites {
    /// Two are enough for a store that gives each upgrade a greater fence: the first may change nothing, because the
    /// lease of a ticket may have another mode than the ticket says.
    const MOST: u32 = 2;

    pub(crate) fn done(&mut self, fence: Option<Fence>) {
        self.times += 1;
        self.last_for = fence;
    }

    /// Records that the wanted conversion was carried out.
    pub(crate) fn wanted_is_done(&mut self) {
        self.last_for = None;
    }
}

#[cfg(test)]
mod tests {
    use Conversion::{Downgrade, Upgrade};

    use super::*;

    fn opposite_comes_first(conversions: &Conversions) -> [bool; 4] {
        let asked = [
            (Upgrade, Mode::Shared),
            (Upgrade, Mode::Exclusive),
            (Downgrade, Mode::Shared),
            (Downgrade, Mode::Exclusive),
        ];
        let (fence, sent) = (Fence::new(7), Opposites::default());
        asked.map(|(wanted, mode)| conversions.opposite_comes_first(wanted, mode, fence, sent))
    }

    #[test]
    fn the_opposite_comes_first_if_it_could_undo_the_wanted_one() {
        let mut conversions = Conversions::default();
        assert_eq!(opposite_comes_first(&conversions), [false; 4]);
        conversions.sent(Downgrade);
        conversions.sent(Downgrade);
        conversions.answered(Downgrade);
        assert_eq!(
            opposite_comes_first(&conversions),
            [true, true, false, false]
        );
        conversions.answered(Downgrade);
        assert_eq!(opposite_comes_first(&conversions), [false; 4]);
        conversions.sent(Upgrade);
        assert_eq!(
            opposite_comes_first(&conversions),
            [false, false, true, false]
        );
        conversions.fence_changed();
        assert_eq!(opposite_comes_first(&conversions), [false; 4]);
        assert!(conversions.upgraded);
    }

    #[test]
    fn the_opposite_is_sent_once_for_a_fence_and_not_for_ever() {
        let mut conversions = Conversions::default();
        conversions.sent(Downgrade);
        let mut sent = Opposites::default();
        for (fence, comes_first) in [(1, true), (1, false), (2, true), (3, false)] {
            let fence = Fence::new(fence);
            let is_first = conversions.opposite_comes_first(Upgrade, Mode::Exclusive, fence, sent);
            assert_eq!(is_first, comes_first, "{fence}");
            if is_first {
                sent.done(Some(fence));
            }
        }
    }

    #[test]
    fn a_greater_fence_is_that_of_an_upgrade_of_a_lease_that_was_shared() {
        let explains = |sent: &[Conversion]| {
            let mut conversions = Conversions::default();
            sent.iter().for_each(|one| conversions.sent(*one));
            [Mode::Shared, Mode::Exclusive].map(|mode| conversions.explains_greater_fence(mode))
        };
        assert_eq!(explains(&[]), [false, false]);
        assert_eq!(explains(&[Downgrade]), [false, false]);
        assert_eq!(explains(&[Upgrade]), [true, false]);
        assert_eq!(explains(&[Upgrade, Downgrade]), [true, true]);
    }
}
