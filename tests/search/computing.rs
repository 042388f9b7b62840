//! What a task that computes must not hold up. Each connection of the client has a task of its own.

use leasehold_tests::computing::nothing_is_held_up;

use super::{BOTH, Fixture};

#[test]
fn a_task_that_computes_holds_up_no_renewal_and_no_release() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let aside = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        aside.unwrap().block_on(fixture.prepare()).unwrap();
        nothing_is_held_up(async || fixture.store());
    }
}
