//! What users see of a store without a clock.

use std::time::Duration;

use leasehold_api::{
    Acquire, BackendError, Error, Key, LockBackend, LockClient, LockSpec, Mode, Operation, OwnerId,
    ServerTime, SessionId,
};

use crate::machine::Machine;
use crate::world::{Connection, Faults, World, block_on};

#[test]
fn jobs_and_shared_locks_are_refused() {
    block_on(async {
        let machine = Machine::new(&World::new(1, Faults::default()));
        let locks = LockClient::new(Connection::backend(&machine));
        let refused = [
            locks.once("job").map(drop),
            locks.rw_lock("a").map(drop),
            locks.semaphore("a", 2).map(drop),
        ];
        for result in refused {
            assert!(
                matches!(result, Err(Error::Unsupported { .. })),
                "{result:?}"
            );
        }
        // Also those of a program that knows no capabilities.
        let operation = Operation {
            session: SessionId::from_bytes([1; 16]),
            sequence: 1,
            owner: OwnerId::from_u64(1),
        };
        let (key, lease) = (Key::new("a").expect("valid"), Duration::from_secs(1));
        let (spec, mode) = (LockSpec::rw_lock(), Mode::Shared);
        let until = ServerTime::default();
        let read = Acquire::new(key, spec, mode, operation, lease, until).expect("valid");
        let answer = Connection::backend(&machine)
            .acquire(&[read])
            .await
            .remove(0);
        assert!(
            matches!(answer, Err(BackendError::Unsupported { .. })),
            "{answer:?}"
        );
    });
}

#[test]
fn inspection_says_when_the_last_change_was_seen() {
    block_on(async {
        let world = World::new(1, Faults::default());
        let [holder, other] = [(); 2].map(|()| {
            let backend = Connection::backend(&Machine::new(&world));
            LockClient::new(backend)
        });
        let guard = holder
            .mutex("a")
            .expect("valid")
            .lock()
            .await
            .expect("free");
        let seen = other.inspect("a").await.expect("it answers").last_change();
        assert_eq!(seen, Some(Duration::ZERO));
        let pause = Duration::from_secs(5);
        tokio::time::sleep(pause).await;
        let inspection = other.inspect("a").await.expect("it answers");
        let ago = inspection.last_change().expect("it is held");
        assert!(ago >= pause && ago < pause * 2, "{ago:?}");
        let text = inspection.to_string();
        assert!(text.contains("last change seen 5"), "{text}");
        assert!(!text.contains("left"), "{text}");
        guard.release().await.expect("held");
        let idle = other.inspect("a").await.expect("it answers");
        assert_eq!(idle.last_change(), None);
    });
}

/// Somebody else looks at them.
#[test]
fn rows_of_ended_programs_are_removed() {
    block_on(async {
        let world = World::new(0, Faults::default());
        let client = || LockClient::new(Connection::backend(&Machine::new(&world)));
        let use_key = async |locks: &LockClient, key: &str| {
            let guard = locks.mutex(key).expect("valid").lock().await;
            guard.expect("free").release().await.expect("held");
        };
        for n in 0..100 {
            use_key(&client(), &format!("invoice:{n}")).await;
        }
        let locks = client();
        for _ in 0..20 {
            use_key(&locks, "other").await;
            tokio::time::sleep(Duration::from_secs(61)).await;
        }
        let left = (0..100).filter(|n| world.get(&format!("key/invoice:{n}")).is_some());
        assert_eq!(left.count(), 0);
    });
}
