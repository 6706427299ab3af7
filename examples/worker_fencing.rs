//! A worker pauses for longer than its lease, wakes up and writes. The database refuses the write.
//!
//! The database here is a struct. In SQL it would be one statement:
//!
//! ```sql
//! UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
//! ```

mod common;

use std::time::Duration;

use common::Result;
use leasehold::FencingToken;
use tokio::time::sleep;

#[derive(Debug)]
struct Row {
    balance: i64,
    fence: FencingToken,
}

impl Row {
    /// Runs the statement above. Returns the number of changed rows.
    fn update(&mut self, balance: i64, token: FencingToken) -> u32 {
        if self.fence > token {
            return 0;
        }
        (self.balance, self.fence) = (balance, token);
        1
    }
}

fn main() -> Result<()> {
    common::run(async |service| {
        let (ann, bob) = (service.client("ann").await?, service.client("bob").await?);
        let mut row = Row {
            balance: 100,
            fence: FencingToken::new(0),
        };

        // `fixed_lease` turns renewal off, as if Ann's whole process were paused.
        let lease = Duration::from_secs(1);
        let anns = ann
            .mutex("account:7")?
            .lease(lease)
            .fixed_lease()
            .lock()
            .await?;
        let seen = row.balance;
        println!(
            "ann reads {seen} under token {}, and is paused",
            anns.fencing_token()
        );

        let bobs = bob.mutex("account:7")?.lock().await?; // waits until Ann's lease expires
        let changed = row.update(row.balance + 50, bobs.fencing_token());
        println!(
            "bob adds 50 under token {}: {changed} row changed",
            bobs.fencing_token()
        );
        assert_eq!(changed, 1);
        bobs.release().await?;

        sleep(Duration::from_secs(1)).await;
        let changed = row.update(seen + 10, anns.fencing_token());
        println!(
            "ann wakes up and writes {}: {changed} rows changed",
            seen + 10
        );
        assert_eq!(changed, 0, "a lower token than bob's is refused");
        assert_eq!(row.balance, 150, "bob's write is kept");
        println!("ann asks her guard: {:?}", anns.renew().await.err());

        ann.shutdown().await?;
        bob.shutdown().await?;
        Ok(())
    })
}
