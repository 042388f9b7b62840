//! `Conversions`: which conversions of a lease have no answer, and may still change it. Pure.
//!
//! In the store the modes of a lease have one order: an exclusive lease becomes shared and keeps its fence, and a shared
//! one becomes exclusive with a greater fence. A conversion names the fence that its sender knows, and the store changes
//! no lease with another one. So a request that is carried out late changes the lease only while the lease has that
//! fence and not the mode that the request asks for.

use crate::model::{Conversion, Mode};

/// The conversions that were sent for one lease.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conversions {
    /// How many upgrades that name the present fence have no answer.
    upgrades: u32,
    /// How many downgrades that name the present fence have no answer.
    downgrades: u32,
    /// Whether any upgrade was sent, of whatever fence.
    upgraded: bool,
}

impl Conversions {
    fn unanswered(&mut self, conversion: Conversion) -> &mut u32 {
        match conversion {
            Conversion::Upgrade => &mut self.upgrades,
            Conversion::Downgrade => &mut self.downgrades,
        }
    }

    pub(super) fn sent(&mut self, conversion: Conversion) {
        self.upgraded |= conversion == Conversion::Upgrade;
        let unanswered = self.unanswered(conversion);
        *unanswered = unanswered.saturating_add(1);
    }

    /// Records that one which names the present fence is answered, or was not sent.
    pub(super) fn answered(&mut self, conversion: Conversion) {
        let unanswered = self.unanswered(conversion);
        *unanswered = unanswered.saturating_sub(1);
    }

    /// Whether one without an answer may still change the lease.
    pub(super) fn any_is_unanswered(&self) -> bool {
        self.upgrades > 0 || self.downgrades > 0
    }

    /// Records that the lease has another fence. The conversions that name an earlier one change nothing any more.
    pub(super) fn has_other_fence(&mut self) {
        (self.upgrades, self.downgrades) = (0, 0);
    }

    pub(super) fn no_upgrade_was_sent(&self) -> bool {
        !self.upgraded
    }

    /// Whether an upgrade without an answer may have given the lease another fence, or may still do so.
    pub(super) fn upgrade_is_unanswered(&self) -> bool {
        self.upgrades > 0
    }

    /// The conversion to send next, so that the lease gets the wanted mode and keeps it. It is the opposite one if the
    /// lease has the wanted mode and an opposite conversion without an answer could still take it away: once that one is
    /// carried out, and another one after it, it cannot be carried out any more.
    pub(super) fn next(&self, wanted: Conversion, mode: Mode) -> Conversion {
        let opposite = match wanted {
            Conversion::Upgrade => self.downgrades,
            Conversion::Downgrade => self.upgrades,
        };
        if mode == wanted.mode() && opposite > 0 {
            wanted.opposite()
        } else {
            wanted
        }
    }
}

#[cfg(test)]
mod tests {
    use Conversion::{Downgrade, Upgrade};

    use super::*;

    #[test]
    fn the_opposite_comes_first_if_it_could_undo_the_wanted_one() {
        let next = |conversions: &Conversions| {
            [
                conversions.next(Upgrade, Mode::Shared),
                conversions.next(Upgrade, Mode::Exclusive),
                conversions.next(Downgrade, Mode::Shared),
                conversions.next(Downgrade, Mode::Exclusive),
            ]
        };
        let all_wanted = [Upgrade, Upgrade, Downgrade, Downgrade];
        let mut conversions = Conversions::default();
        assert_eq!(next(&conversions), all_wanted);
        conversions.sent(Downgrade);
        conversions.sent(Downgrade);
        conversions.answered(Downgrade);
        assert_eq!(
            next(&conversions),
            [Upgrade, Downgrade, Downgrade, Downgrade]
        );
        conversions.answered(Downgrade);
        assert_eq!(next(&conversions), all_wanted);
        conversions.sent(Upgrade);
        assert_eq!(next(&conversions), [Upgrade, Upgrade, Upgrade, Downgrade]);
        conversions.has_other_fence();
        assert_eq!(next(&conversions), all_wanted);
        assert!(!conversions.any_is_unanswered() && !conversions.no_upgrade_was_sent());
    }
}
