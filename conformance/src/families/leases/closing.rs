//! A backend that is closed.

use std::fmt::Debug;
use std::future::ready;
use std::slice::from_ref;

use futures_util::StreamExt;
use leasehold_api::{BackendError, Convert, FencingToken, ForceRelease};

use crate::case::{Case, cases};
use crate::failure::{Verdict, ensure, want};
use crate::world::{Lock, World};

pub(super) const CASES: &[Case] = cases!("closing";
    calls_after_close_return_closed: ["trait contract"], [];
    closing_harms_no_other_client: ["trait contract"], [];
);

fn closed<T: Debug>(result: Result<T, BackendError>, method: &str) -> Verdict {
    want!(result, Err(BackendError::Closed)).promised(format!(
        "trait contract: after `close`, `{method}` returns `Closed`"
    ))
}

async fn calls_after_close_return_closed(world: &World) -> Verdict {
    let session = world.session().await?;
    let lock = Lock::mutex("k");
    let held = session.ask(&lock).acquired("S1").await?;
    let request = session.ask(&lock).build().await?;
    let (backend, able) = (&session.backend, world.capabilities());
    let stream = match able.push {
        true => Some(session.listen().await?),
        false => None,
    };
    for _ in 0..2 {
        backend.close().await?;
    }
    closed(backend.hello().await, "hello")?;
    closed(backend.acquire(&[request]).await.remove(0), "acquire")?;
    let renew = held.renew_request(world.units(5))?;
    closed(backend.renew(from_ref(&renew)).await.remove(0), "renew")?;
    let release = [held.release_request()];
    closed(backend.release(&release).await.remove(0), "release")?;
    if able.queue {
        let poll = [held.poll_request(false)];
        closed(backend.poll(&poll).await.remove(0), "poll")?;
    }
    if able.inspect {
        closed(backend.inspect(&lock.key).await, "inspect")?;
    }
    let token = FencingToken::new(1);
    if able.convert {
        let convert = Convert::to_shared(lock.key.clone(), held.operation(), token);
        closed(backend.convert(&convert).await, "convert")?;
    }
    if able.force_release {
        let force = ForceRelease::new(lock.key.clone(), vec![token]);
        closed(backend.force_release(&force).await, "force_release")?;
    }
    if able.notes {
        let note = held.note_request(1, b"text", world.units(1))?;
        closed(backend.write_note(&note).await, "write_note")?;
    }
    if let Some(stream) = stream {
        closed(backend.listen(session.id).await.map(drop), "listen")?;
        let ends = stream.for_each(|_| ready(()));
        let ended = world.within(10, ends).await.is_some();
        ensure!(ended, "it goes on")
            .promised("trait contract: `close` ends the streams of `listen`")?;
    }
    Ok(())
}

async fn closing_harms_no_other_client(world: &World) -> Verdict {
    let (a, b, lock, _held) = world.held(Lock::mutex("k")).await?;
    a.backend.close().await?;
    b.ask(&lock).finds_contention("S1").await?;
    b.ask(&Lock::mutex("other")).granted("S1").await
}
