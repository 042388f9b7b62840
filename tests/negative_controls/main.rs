//! The conformance suite catches the faults that it is for. Each store here is broken on purpose,
//! in one of the ways in which published locks are broken, and fails the property that names the
//! fault.

mod broken;

use std::{sync::Arc, time::Duration};

use broken::{BrokenStore, Fault};
use leasehold::{
    Key, Store,
    store::{AcquireRequest, LeaseId, RenewRequest},
};
use leasehold_conformance::{self as conformance, Clients};
use leasehold_tests::{
    model, permits,
    renewal_log::{RenewalLog, Renewals},
    soak,
};
use tokio::{
    runtime::Runtime,
    time::{Instant, advance},
};

/// Two clients of one broken store. The clock of the second is an hour ahead.
fn broken(fault: Fault) -> Clients {
    let store = BrokenStore::new(fault);
    Clients::new(store.clone(), store.with_clock_ahead())
}

macro_rules! controls {
    ($($name:ident: $fault:ident is caught by $($property:ident),+;)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            $(
                let outcome = conformance::$property(&broken(Fault::$fault)).await;
                assert!(
                    outcome.is_err(),
                    "{} passed a store with the fault {:?}",
                    stringify!($property),
                    Fault::$fault
                );
            )+
        }
    )*};
}

controls! {
    release_by_key_alone: ReleaseByKey is caught by
        a_stale_release_is_refused, a_slow_holder_releases_late, an_eviction_frees_the_key;
    expiry_by_the_clients_clock: ClientClock is caught by
        takeover_only_after_expiry_on_the_servers_clock, a_loser_never_extends_the_expiry;
    no_fence: NoFence is caught by the_fence_always_rises, a_slow_holder_releases_late;
    a_fence_that_restarts_after_a_release: FenceRestarts is caught by the_fence_always_rises;
    an_eviction_that_keeps_the_fence: EvictionKeepsFence is caught by
        the_fence_always_rises, an_eviction_frees_the_key;
    an_eviction_that_keeps_the_names: EvictionKeepsNames is caught by
        an_evicted_lease_is_no_holder_any_more;
    look_and_then_write: NotAtomic is caught by
        of_32_racing_tasks_one_wins, critical_sections_never_overlap;
    losers_extend_the_expiry: LosersExtend is caught by a_loser_never_extends_the_expiry;
    losers_write: LosersWrite is caught by a_loser_writes_nothing;
    a_repeated_request_is_refused: ForgetsLease is caught by a_repeated_request_is_granted_once;
    a_renewal_without_a_look: RenewsBlindly is caught by
        a_stale_renewal_is_refused, many_renewals_go_in_one_call,
        a_kept_lease_that_is_evicted_is_lost;
    a_renewal_that_is_not_stored: RenewalIsForgotten is caught by
        a_renewal_counts_from_now, a_kept_lease_outlives_its_ttl;
    a_grant_that_is_known_and_not_looked_for: TrustsWhatIsKnown is caught by renewals_of_known_grants_tell_the_live_from_the_dead;
    a_renewal_that_shortens_a_lease: RenewalsShorten is caught by a_renewal_never_shortens_a_lease;
    a_removal_not_bounded_by_expiry: RemovesBlindly is caught by
        two_contenders_see_an_expired_lock, remove_expired_removes_only_what_is_dead,
        clean_up_racing_with_takeover_removes_no_live_lock;
    a_purge_that_forgets_the_retention: PurgesBlindly is caught by
        purge_removes_only_what_is_long_dead;
    a_clean_up_by_the_expiry_alone: RemovesFencesAhead is caught by
        a_fence_ahead_of_the_clock_outlives_a_clean_up;
    keys_that_are_trimmed: TrimsKeys is caught by odd_keys_are_just_text;
    a_release_that_does_nothing: NeverReleases is caught by
        a_released_key_is_free_at_once, a_waiter_gets_the_lock_after_its_release,
        a_dropped_lease_is_released, a_dropped_acquire_leaves_no_lock,
        work_under_a_lease_holds_the_key_until_it_ends, waiters_of_one_process_take_turns,
        a_waiter_that_goes_away_holds_up_nobody, a_close_releases_everything;
    expired_readers_that_block_a_writer: DeadReadersBlock is caught by
        a_reader_that_is_gone_blocks_nobody;
    a_release_that_drops_the_expired_too: ReleaseDropsTheExpired is caught by
        a_reader_that_has_expired_is_told_so_after_another_has_left;
    permits_that_nobody_counts: PermitsWithoutCount is caught by
        permits_are_never_more_than_there_are;
    a_key_with_any_number_of_holders: HoldersWithoutBound is caught by
        a_key_has_a_bounded_number_of_holders;
    a_bound_by_look_and_then_write: NotAtomic is caught by a_key_has_a_bounded_number_of_holders;
    an_upgrade_beside_other_readers: UpgradesBesideOthers is caught by
        leases_are_upgraded_and_downgraded;
    a_conversion_that_is_not_stored: ConversionIsForgotten is caught by
        leases_are_upgraded_and_downgraded;
    a_conversion_of_any_fence: ConversionsIgnoreFences is caught by
        a_late_conversion_undoes_no_later_one;
    a_minimum_hold_that_ends_with_the_release: ForgetsMinHold is caught by
        a_minimum_hold_outlasts_the_release;
    a_list_without_its_filter: ListsEverything is caught by
        a_list_shows_what_its_filter_describes, releasing_an_owner_frees_all_of_its_locks;
    a_list_that_skips_between_pages: SkipsAtPageEnd is caught by
        pages_show_every_lock_that_stays_once;
    a_limit_by_the_clients_clock: ClientClock is caught by
        a_window_never_has_more_permits_than_its_limit;
    permits_by_look_and_then_write: PermitsNotAtomic is caught by
        a_window_never_has_more_permits_than_its_limit, waiting_tasks_get_what_the_windows_have;
    a_window_that_never_turns: PermitsWithoutWindow is caught by
        a_window_never_has_more_permits_than_its_limit, waiting_tasks_get_what_the_windows_have;
    a_repeated_request_for_permits_that_counts: RepeatedPermitsCount is caught by
        a_repeated_request_takes_its_permits_once;
    a_peek_that_takes_a_permit: PeeksTake is caught by a_peek_takes_nothing;
    a_peek_that_sees_no_grant: PeeksSeeNothing is caught by a_peek_takes_nothing;
    a_take_over_that_enters_again: TakeOversEnterAgain is caught by an_owner_takes_over_its_own_leases;
    a_take_over_that_waits_for_the_old_lease: TakeOversWait is caught by an_owner_takes_over_its_own_leases;
    a_take_over_of_the_leases_of_others: TakeOversOfAnybody is caught by
        an_owner_takes_over_its_own_leases;
    permits_that_are_not_taken_back: GivesNothingBack is caught by permits_given_back_are_free_again;
    permits_of_an_earlier_window: GivesBackEarlierPermits is caught by permits_given_back_are_free_again;
    permits_that_the_document_has_forgotten: GivesBackForgottenPermits is caught by
        permits_given_back_are_free_again;
    what_was_left_before_the_grant: LeftBeforeTheGrant is caught by
        an_answer_says_what_is_left;
    permits_of_which_a_part_is_granted: PermitsInPart is caught by
        permits_that_belong_together_are_granted_together;
    a_smooth_limiter_with_windows: SmoothIsFixed is caught by
        smooth_permits_come_one_after_the_other;
    a_small_burst_that_gives_back_what_another_took: SmallBurstsGiveBack is caught by
        a_smaller_burst_gives_nothing_back;
    a_stored_window_that_blocks_another: AnotherWindowBlocks is caught by
        a_limiter_with_other_terms_goes_on;
    a_limiter_in_the_place_of_a_lock: LimitersAreLocks is caught by
        a_limiter_and_a_lock_may_have_one_key;
    a_purge_of_windows_that_count: LimitersArePurged is caught by
        a_purge_forgets_no_window_that_counts;
    a_batch_by_look_and_then_write: NotAtomic is caught by racing_batches_share_no_key;
    a_batch_in_disorder: BatchInDisorder is caught by a_batch_does_what_its_requests_say;
    a_batch_that_ends_early: BatchEndsAtARefusal is caught by
        a_batch_does_what_its_requests_say, racing_batches_share_no_key;
    a_store_that_forgets_places: ForgetsPlaces is caught by
        processes_are_granted_a_key_in_the_order_in_which_they_came, a_place_tells_who_waits,
        a_key_has_a_bounded_number_of_places, a_batch_keeps_the_queue,
        a_set_waits_in_turn_for_one_key_at_a_time;
    places_that_name_nobody: PlacesWithoutOwner is caught by a_place_tells_who_waits;
    a_place_that_stays_after_its_grant: PlaceStaysAfterItsGrant is caught by
        processes_are_granted_a_key_in_the_order_in_which_they_came,
        all_that_go_on_asking_are_granted_the_key;
    a_place_that_ends_whatever_is_asked: PlacesEndWhateverIsAsked is caught by
        a_place_lasts_while_its_process_asks;
    a_place_that_is_lost_by_asking: WhoAsksAgainComesLast is caught by
        a_place_lasts_while_its_process_asks;
    the_places_of_the_dead_that_block: DeadPlacesBlock is caught by
        a_process_that_is_gone_blocks_nobody;
    places_that_keep_a_free_key_for_ever: PlacesBindForEver is caught by
        a_process_that_is_gone_blocks_nobody;
    places_that_keep_a_key_from_an_earlier_expiry: PlacesBindFromTheLastExpiry is caught by
        a_key_is_kept_from_the_release_of_its_last_holder;
    a_place_that_counts_for_less_than_was_told: PlacesAreShortened is caught by
        a_place_counts_for_as_long_as_was_told;
    a_key_with_any_number_of_places: PlacesWithoutBound is caught by
        a_key_has_a_bounded_number_of_places;
    a_place_for_all_keys: PlacesAreForAllKeys is caught by
        a_place_is_for_one_key, a_set_waits_in_turn_for_one_key_at_a_time;
    a_place_that_is_never_given_back: NeverLeaves is caught by a_place_is_given_back;
    a_place_that_is_given_back_with_all_others: LeavesEndTheQueue is caught by
        a_place_is_given_back;
    places_that_were_passed_and_come_first: PassedPlacesStay is caught by
        a_process_that_is_gone_blocks_nobody;
    a_place_that_counts_for_any_time: PlacesCountForAnyTime is caught by
        a_place_counts_for_as_long_as_was_told;
    a_renewal_that_ends_the_queue: RenewalsEndTheQueue is caught by
        renewals_and_evictions_keep_the_places;
    readers_that_pass_a_writer: ReadersPassWriters is caught by
        a_reader_queues_behind_a_writer, an_upgrade_does_not_queue, a_batch_keeps_the_queue,
        a_nested_request_waits_behind_who_waits_for_its_lease;
    small_requests_that_pass_a_large_one: SmallPermitsPass is caught by
        permits_queue_behind_a_large_request,
        a_nested_request_waits_behind_who_waits_for_its_lease;
    owners_that_wait_for_themselves: OwnersQueueBehindThemselves is caught by
        an_owner_does_not_queue_behind_itself;
    upgrades_that_wait_for_their_own_lease: UpgradesQueue is caught by an_upgrade_does_not_queue;
    a_queue_that_cannot_be_passed: NobodyBarges is caught by
        who_passes_the_queue_leaves_it_as_it_is;
    a_queue_that_ends_when_it_is_passed: WhoPassesEndsTheQueue is caught by
        who_passes_the_queue_leaves_it_as_it_is;
    an_eviction_of_the_queue: EvictionEndsTheQueue is caught by
        renewals_and_evictions_keep_the_places;
    a_release_that_ends_the_queue: ReleaseEndsTheQueue is caught by
        renewals_and_evictions_keep_the_places,
        processes_are_granted_a_key_in_the_order_in_which_they_came;
    a_conversion_that_ends_the_queue: ConversionsEndTheQueue is caught by
        an_upgrade_does_not_queue;
    a_refusal_that_counts_a_process_too_many: CountsOneMoreAhead is caught by
        processes_are_granted_a_key_in_the_order_in_which_they_came;
    a_refusal_of_a_free_key_without_an_end: HidesForHowLongPlacesBind is caught by
        processes_are_granted_a_key_in_the_order_in_which_they_came;
    a_place_without_waiting: TriesTakePlaces is caught by
        a_refusal_without_a_place_writes_nothing;
    a_batch_that_passes_the_queue: BatchesPassTheQueue is caught by a_batch_keeps_the_queue;
    places_by_look_and_then_write: NotAtomic is caught by
        all_that_go_on_asking_are_granted_the_key;
    a_grant_that_forgets_what_is_done: GrantsForgetTicks is caught by
        what_is_done_outlives_what_happens_to_the_key,
        a_repeated_release_finds_the_tick_that_it_wrote;
    a_release_that_forgets_what_is_done: ReleasesForgetTicks is caught by
        what_is_done_outlives_what_happens_to_the_key;
    an_eviction_that_forgets_what_is_done: EvictionForgetsTicks is caught by
        what_is_done_outlives_what_happens_to_the_key,
        nothing_is_done_under_a_lease_that_is_lost;
    a_lost_lease_that_has_done_its_tick: LostLeasesAreDone is caught by
        nothing_is_done_under_a_lease_that_is_lost;
    a_tick_that_is_not_written: NothingIsDone is caught by
        a_tick_that_is_done_is_not_granted_again, a_list_shows_what_is_done, of_8_jobs_one_runs;
    a_tick_that_is_done_by_its_grant: GrantsAreDone is caught by
        a_tick_that_was_not_done_is_granted_to_the_next, of_8_clients_one_does_a_tick,
        of_8_jobs_one_runs;
    a_tick_that_was_done_by_nobody: NobodyKnowsWhoDidIt is caught by
        a_repeated_release_finds_the_tick_that_it_wrote, a_list_shows_what_is_done;
    a_tick_by_look_and_then_write: TickIsLookedAtFirst is caught by
        of_8_clients_one_does_a_tick, of_8_jobs_one_runs;
    a_race_for_a_tick_by_look_and_then_write: NotAtomic is caught by
        of_8_clients_one_does_a_tick, of_8_jobs_one_runs;
    an_older_tick_that_passes: OlderTicksPass is caught by
        a_tick_that_is_done_is_not_granted_again;
    a_tick_of_another_kind_that_passes: TicksOfOtherKindsPass is caught by
        ticks_of_different_kinds_are_not_compared;
    ticks_that_are_compared_by_their_numbers: TicksAreNumbers is caught by
        ticks_of_different_kinds_are_not_compared;
    a_tick_that_is_done_and_waited_for: TicksAreWaitedFor is caught by
        a_tick_that_is_done_is_not_waited_for;
    a_clean_up_of_what_is_done: CleanUpForgetsTicks is caught by
        a_clean_up_waits_for_what_is_done;
    a_list_without_what_is_done: TicksAreHidden is caught by a_list_shows_what_is_done;
    fences_that_are_taken_one_by_one: FencesOneByOne is caught by
        a_grant_takes_as_many_fences_as_it_asks_for, a_key_that_stays_goes_to_a_process_that_waits;
    keys_that_nobody_waits_for: NobodyIsWaitedFor is caught by
        a_store_tells_which_keys_are_waited_for, a_key_that_stays_goes_to_a_process_that_waits;
    a_look_that_misses_an_eviction: EverythingIsHeld is caught by
        a_look_tells_whether_a_lease_is_held, a_key_that_stays_is_granted_to_nobody_after_an_eviction;
    a_look_that_misses_a_lease: NothingIsHeld is caught by a_look_tells_whether_a_lease_is_held;
    an_expiry_that_comes_early: ExpiresEarly is caught by
        a_detached_lease_stays_until_its_ttl_is_over, a_lease_is_over_for_its_holder_first;
}

/// How many random sequences a correct store is compared on.
const CASES: u32 = 300;
/// How many random sequences a broken store is compared on at most. The first one that shows the
/// fault ends the comparison.
const UNTIL_CAUGHT: u32 = 100 * CASES;

/// Compares a store that has this fault with the memory store.
fn compare_broken(
    fault: Fault,
    cases: u32,
    compare: impl Fn(&Runtime, &Arc<dyn Store>, u32) -> Result<(), String>,
) -> Result<(), String> {
    let mut paused = tokio::runtime::Builder::new_current_thread();
    let runtime = paused.enable_all().start_paused(true).build().unwrap();
    let store: Arc<dyn Store> = runtime.block_on(async { Arc::new(BrokenStore::new(fault)) });
    compare(&runtime, &store, cases)
}

/// The comparison with the memory store on random commands catches every fault that shows in
/// answers. It leaves out `HoldersWithoutBound`: no random sequence has a thousand holders of a
/// key.
#[test]
fn random_commands_tell_a_broken_store_from_memory() {
    let compare = |fault, cases| compare_broken(fault, cases, model::compare);
    let faults = [
        Fault::ReleaseByKey,
        Fault::NoFence,
        Fault::FenceRestarts,
        Fault::EvictionKeepsFence,
        Fault::EvictionKeepsNames,
        Fault::LosersExtend,
        Fault::LosersWrite,
        Fault::ForgetsLease,
        Fault::RenewsBlindly,
        Fault::RenewalsShorten,
        Fault::RemovesBlindly,
        Fault::NeverReleases,
        Fault::ExpiresEarly,
        Fault::DeadReadersBlock,
        Fault::PermitsWithoutCount,
        Fault::UpgradesBesideOthers,
        Fault::ConversionIsForgotten,
        Fault::ConversionsIgnoreFences,
        Fault::ForgetsMinHold,
        Fault::BatchInDisorder,
        Fault::BatchEndsAtARefusal,
        Fault::GrantsForgetTicks,
        Fault::ReleasesForgetTicks,
        Fault::EvictionForgetsTicks,
        Fault::LostLeasesAreDone,
        Fault::NothingIsDone,
        Fault::GrantsAreDone,
        Fault::NobodyKnowsWhoDidIt,
        Fault::OlderTicksPass,
        Fault::TicksOfOtherKindsPass,
        Fault::TicksAreNumbers,
        Fault::TicksAreWaitedFor,
        Fault::CleanUpForgetsTicks,
        Fault::TicksAreHidden,
        Fault::FencesOneByOne,
    ];
    for fault in faults {
        assert!(
            compare(fault, UNTIL_CAUGHT).is_err(),
            "{fault:?} was not caught"
        );
    }
    assert_eq!(compare(Fault::None, CASES), Ok(()));
}

/// The same for processes that wait in turn. The suite tests for how long places count, and batches of such requests.
#[test]
fn random_processes_that_wait_tell_a_broken_store_from_memory() {
    let compare = |fault, cases| compare_broken(fault, cases, model::compare_in_turn);
    for fault in [
        Fault::ForgetsPlaces,
        Fault::ReadersPassWriters,
        Fault::SmallPermitsPass,
        Fault::NeverLeaves,
        Fault::PlaceStaysAfterItsGrant,
        Fault::WhoAsksAgainComesLast,
        Fault::OwnersQueueBehindThemselves,
        Fault::UpgradesQueue,
        Fault::NobodyBarges,
        Fault::EvictionEndsTheQueue,
        Fault::ReleaseEndsTheQueue,
        Fault::CountsOneMoreAhead,
        Fault::HidesForHowLongPlacesBind,
        Fault::TriesTakePlaces,
    ] {
        assert!(
            compare(fault, UNTIL_CAUGHT).is_err(),
            "{fault:?} was not caught"
        );
    }
    assert_eq!(compare(Fault::None, CASES), Ok(()));
}

/// The same for permits.
#[test]
fn random_requests_for_permits_tell_a_broken_store_from_memory() {
    let compare = |fault, cases| compare_broken(fault, cases, permits::compare);
    for fault in [
        Fault::RepeatedPermitsCount,
        Fault::PermitsInPart,
        Fault::PeeksSeeNothing,
        Fault::GivesNothingBack,
        Fault::SmoothIsFixed,
    ] {
        assert!(
            compare(fault, UNTIL_CAUGHT).is_err(),
            "{fault:?} was not caught"
        );
    }
    assert_eq!(compare(Fault::None, CASES), Ok(()));
}

/// The soak catches faults that show only now and then, while most requests go well.
#[tokio::test(start_paused = true)]
async fn work_tells_a_broken_store_from_a_whole_one() {
    let work = async |fault| {
        let store: Arc<dyn Store> = Arc::new(BrokenStore::new(fault));
        let clients = vec![store.clone(), store.clone()];
        let enough = |tally: &soak::Tally| tally.has_all(20);
        let tally = soak::soak(clients, store, enough, || {}).await;
        tally.map_err(|wrong| wrong.to_string())
    };
    for (fault, caught) in [
        (Fault::ForgetsSomeReleases, &["stays held"][..]),
        (Fault::NeverReleases, &["stays held"]),
        (Fault::RefusesSomeRenewals, &["was lost wrongly"]),
        // The message depends on which holder is looked at first, and on whether its lease has ended by then.
        (
            Fault::RenewalIsForgotten,
            &[
                "has two live holders",
                "was lost wrongly",
                "lost after too few renewals in vain",
            ],
        ),
        (Fault::NotAtomic, &["has two live holders"]),
        (Fault::NoFence, &["falls"]),
    ] {
        let outcome = work(fault).await;
        let names = |wrong: &String| caught.iter().any(|it| wrong.contains(it));
        let seen = outcome.as_ref().is_err_and(names);
        assert!(seen, "{fault:?}: {outcome:?}");
    }
    let tally = work(Fault::None).await.unwrap();
    assert_eq!(tally.unlucky, 0, "{tally:?}");
}

/// In the soak a loss is excused by renewals that were sent and not answered.
#[tokio::test(start_paused = true)]
async fn only_renewals_in_vain_since_the_last_answer_excuse_a_loss() {
    const TTL: Duration = Duration::from_secs(9);
    let log = RenewalLog::default();
    let store = log.around(Arc::new(BrokenStore::new(Fault::None)));
    let (key, lease) = (Key::new("key").unwrap(), LeaseId::random());
    let renewal = [RenewRequest::new(key.clone(), lease, TTL)];
    let renewals = || log.of(lease, Instant::now());
    for times in 1..=2 {
        store.renew(&renewal).await.unwrap();
        advance(TTL / 9).await;
        let of_none = renewals();
        assert_eq!(of_none.in_vain.len(), times, "the lease does not exist");
    }
    let acquire = AcquireRequest::exclusive(key, lease, "owner".into(), TTL);
    store.acquire(&acquire).await.unwrap();
    store.renew(&renewal).await.unwrap();
    let answered = Instant::now();
    advance(TTL / 9).await;
    assert_eq!(renewals().last, Some((answered, answered)));
    assert_eq!(renewals().in_vain, []);
    let before = log.of(lease, answered);
    assert_eq!((before.last, before.in_vain.len()), (None, 2));
    advance(TTL).await;
    store.renew(&renewal).await.unwrap();
    let late = Instant::now();
    advance(TTL / 9).await;
    assert_eq!(renewals().in_vain, [late], "the lease is over");
}

/// The number of such renewals that excuses a loss: one every 1.5 s, from the moment at which the
/// lease is due, or was last heard of.
#[test]
fn a_lease_is_lost_after_as_many_renewals_in_vain_as_there_was_time_for() {
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let until = start + 9 * second;
    for (taken, attempts) in [(0, 3), (3, 3), (4, 3), (5, 2), (7, 1), (8, 0), (9, 0)] {
        let seen = soak::Seen {
            lease: LeaseId::random(),
            taken: start + taken * second,
            until,
        };
        let none = Renewals {
            last: None,
            in_vain: Vec::new(),
        };
        assert_eq!(seen.attempts(&none), attempts, "taken after {taken} s");
        // The lease was renewed later, and the answer took a second.
        let sent = until + 3 * second;
        let renewed = Renewals {
            last: Some((sent, sent + second)),
            ..none
        };
        assert_eq!(seen.attempts(&renewed), 3);
    }
}

/// The controls mean something only if the same store passes without a fault.
mod without_a_fault {
    use super::{BrokenStore, Clients, Fault};

    async fn connect() -> Clients {
        let store = BrokenStore::new(Fault::None);
        Clients::new(store.clone(), store.with_clock_ahead())
    }

    leasehold_conformance::conformance_suite!(connect, start_paused = true);
}
