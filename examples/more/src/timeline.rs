//! The pictures of `README.md` and `docs/guarantees.md`: SVG drawings of a run that the example `timeline` has
//! recorded.

mod canvas;
mod lanes;
mod layout;
mod picture;
mod theme;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use self::{
    lanes::Detail,
    picture::draw,
    theme::{DARK, LIGHT},
};

/// A run with two processes, A and B, which write to one document under leases of the same key. A is paused past the
/// expiry of its lease.
///
/// All times are in milliseconds since the server granted the lease to A.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The ttl of both leases.
    pub ttl: i64,
    /// The fence of the lease of A.
    pub fence_a: i64,
    /// The fence of the lease of B.
    pub fence_b: i64,
    /// The first write of A is acknowledged.
    pub a_wrote: i64,
    /// A gets the answer to a renewal.
    pub a_renewed: Vec<i64>,
    /// `is_live()` answers `true`, and SIGSTOP stops A before its next write.
    pub a_paused: i64,
    /// B asks for the key and waits.
    pub b_asked: i64,
    /// From here on A must not rely on its lease, by its own clock.
    pub a_deadline: i64,
    /// The lease of A expires, by the server's clock.
    pub a_expired: i64,
    /// The server grants the lease to B.
    pub b_granted: i64,
    /// The write of B is acknowledged.
    pub b_wrote: i64,
    /// A runs again after SIGCONT. `is_live()` answers `false`.
    pub a_resumed: i64,
    /// `lost()` returns in A.
    pub a_lost: i64,
    /// The late write of A is refused, with `Error::Fenced`.
    pub a_refused: i64,
    /// B has released its lease.
    pub b_released: i64,
}

impl Run {
    /// Fails unless everything happened in the order that the pictures show.
    pub fn check(&self) -> Result<()> {
        let renewals = self.a_renewed.iter().copied();
        let before = [0, self.a_wrote].into_iter().chain(renewals);
        let after = [
            self.a_paused,
            self.b_asked,
            self.a_deadline,
            self.a_expired,
            self.b_granted,
            self.b_wrote,
            self.a_resumed,
            self.a_lost.min(self.a_refused),
            self.a_lost.max(self.a_refused),
            self.b_released,
        ];
        ensure!(
            before.chain(after).is_sorted(),
            "the machine was too slow for this story, try again: {self:?}"
        );
        ensure!(self.fence_a < self.fence_b, "the fence did not rise");
        ensure!(self.ttl > 0, "there is no ttl of 0");
        Ok(())
    }

    /// The pictures: the name and the content of each file.
    pub fn pictures(&self) -> [(&'static str, String); 4] {
        [
            ("paused-holder-light.svg", draw(self, Detail::Brief, &LIGHT)),
            ("paused-holder-dark.svg", draw(self, Detail::Brief, &DARK)),
            ("lease-timeline-light.svg", draw(self, Detail::Full, &LIGHT)),
            ("lease-timeline-dark.svg", draw(self, Detail::Full, &DARK)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// After a change of the drawing, run `scripts/picture --redraw`.
    #[test]
    fn the_pictures_in_docs_are_of_the_run_beside_them() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
        let recorded = fs::read_to_string(folder.join("paused-holder.json")).unwrap();
        let recorded: Run = serde_json::from_str(&recorded).unwrap();
        recorded.check().unwrap();
        for (name, picture) in recorded.pictures() {
            let drawn = fs::read_to_string(folder.join(name)).unwrap();
            assert!(drawn == picture, "{name} is of another run");
        }
    }
}
