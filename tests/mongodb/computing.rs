//! What a task that computes must not hold up. The driver has a task that gives out its connections, and every request
//! needs it.

use leasehold_tests::computing::nothing_is_held_up;

use super::{Engine, Fixture};

#[test]
fn a_task_that_computes_holds_up_no_renewal_and_no_release() {
    let fixture = Fixture::new(Engine::MongoDb);
    nothing_is_held_up(|| fixture.store());
}
