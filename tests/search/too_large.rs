//! Requests that are larger than something between the store and the cluster takes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use leasehold::{
    ElasticsearchStore, Key, Store,
    store::{LeaseId, RenewRequest},
};
use leasehold_tests::liar::{Liar, Lie, Reply};

use super::{
    LONG, elasticsearch,
    nonsense::{each, http, ids, located, lock, noop},
};

/// A proxy takes no large request. So the store sends smaller ones, and from then on at once.
#[tokio::test]
async fn changes_that_are_too_many_for_a_proxy_go_in_smaller_requests() {
    let (answers, refused) = (each(noop(&lock())), Arc::new(AtomicUsize::new(0)));
    let count = refused.clone();
    let lie: Lie = Arc::new(move |asked: &[u8]| {
        if ids(asked).len() > 3 {
            count.fetch_add(1, Relaxed);
            Reply::Says(http("413 Content Too Large", b"<html>too large</html>"))
        } else {
            answers(asked)
        }
    });
    let liar = Liar::saying(located(lie)).await;
    let client = elasticsearch(&format!("http://{}", liar.address));
    let store = ElasticsearchStore::new(client, "locks").stored_scripts();
    let request = |number| {
        let key = Key::new(format!("key {number}")).unwrap();
        RenewRequest::new(key, LeaseId::random(), LONG)
    };
    let requests: Vec<_> = (0..11).map(request).collect();
    for _ in 0..2 {
        let renewed = store.renew(&requests).await.unwrap();
        assert_eq!(renewed.len(), requests.len());
        assert!(renewed.iter().all(Result::is_ok), "{renewed:?}");
        // 11, then 6, 5 and so on, and no more in the second round.
        assert_eq!(refused.load(Relaxed), 3);
    }
}
