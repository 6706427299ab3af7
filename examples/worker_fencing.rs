//! A worker pauses for longer than its lease, wakes up and writes. The database refuses the write, and no
//! addition is lost.
//!
//! The database here is a struct. In SQL its methods would be one statement each:
//!
//! ```sql
//! UPDATE account SET fence = $1 WHERE id = $2 AND fence <= $1 RETURNING balance; -- claim
//! UPDATE account SET balance = $3 WHERE id = $2 AND fence = $1;                  -- write
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
    /// Claims the row and reads the balance, unless a later holder has claimed it.
    fn claim(&mut self, token: FencingToken) -> Option<i64> {
        if self.fence > token {
            return None;
        }
        self.fence = token;
        Some(self.balance)
    }

    /// Writes, if the row is still claimed with this token. Returns the number of changed rows.
    fn write(&mut self, balance: i64, token: FencingToken) -> u32 {
        if self.fence != token {
            return 0;
        }
        self.balance = balance;
        1
    }
}

fn main() -> Result<()> {
    common::run(async |service| {
        let (ann, bob) = (service.client("ann").await?, service.client("bob").await?);
        let mut row = Row {
            balance: 100,
            fence: FencingToken::default(),
        };

        // `fixed_lease` turns renewal off, as if Ann's whole process were paused.
        let lease = Duration::from_secs(1);
        let anns_mutex = ann.mutex("account:7")?.lease(lease).fixed_lease();
        let anns = anns_mutex.lock().await?;
        let anns_token = anns.fencing_token();
        let seen = row.claim(anns_token).expect("ann is the first");
        println!("ann claims the row with token {anns_token}, reads {seen}, and is paused");

        let bobs = bob.mutex("account:7")?.lock().await?; // waits until Ann's lease expires
        let bobs_token = bobs.fencing_token();
        let balance = row.claim(bobs_token).expect("bob's token is greater");
        println!("bob claims the row with token {bobs_token}, and reads {balance}");

        sleep(Duration::from_secs(1)).await;
        let changed = row.write(seen + 10, anns_token);
        println!(
            "ann wakes up and writes {}: {changed} rows changed",
            seen + 10
        );
        assert_eq!(changed, 0, "bob has claimed the row");
        println!("ann asks her guard: {:?}", anns.renew().await.err());

        let changed = row.write(balance + 50, bobs_token);
        println!("bob writes {}: {changed} row changed", balance + 50);
        assert_eq!(changed, 1);
        bobs.release().await?;

        // Ann knows that her write was refused. So she takes the lock again, and both additions count.
        let anns = ann.mutex("account:7")?.lock().await?;
        let token = anns.fencing_token();
        let balance = row.claim(token).expect("ann's new token is greater");
        assert_eq!(row.write(balance + 10, token), 1);
        println!("ann adds 10 under token {token}: {row:?}");
        assert_eq!(row.balance, 160);
        anns.release().await?;

        ann.shutdown().await?;
        bob.shutdown().await?;
        Ok(())
    })
}
