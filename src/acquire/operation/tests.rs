use super::*;

/// Each waiter keeps one such future in memory for as long as it waits.
#[test]
fn the_future_of_an_acquire_has_no_room_for_its_clean_up() {
    fn size<F>(_: impl Fn(AcquireOperation, WaitPolicy, Reply, TaskTrackerToken) -> F) -> usize {
        size_of::<F>()
    }
    let size = size(AcquireOperation::run);
    assert!(size < 4_500, "{size} bytes");
}
