//! Exponential backoff: each pause is twice as long as the one before, up to a maximum.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);

/// The pauses between repeated attempts. They have no jitter: `Runtime::jittered` adds it.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// For a call that a caller awaits: 20 ms to 200 ms.
    pub(crate) const fn foreground() -> Self {
        Self::up_to(Duration::from_millis(200))
    }

    /// For a call of a background task: 20 ms to 500 ms.
    pub(crate) const fn background() -> Self {
        Self::up_to(Duration::from_millis(500))
    }

    /// For connecting: 20 ms to 750 ms. So a client that may connect again does within a second.
    pub(crate) const fn connecting() -> Self {
        Self::up_to(Duration::from_millis(750))
    }

    const fn up_to(max: Duration) -> Self {
        Self { next: FIRST, max }
    }

    /// The next pause, without jitter.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    /// Starts again with the shortest pause. Call it after a success.
    pub(crate) const fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_max_and_start_again_after_a_reset() {
        let mut backoff = Backoff::background();
        let pauses: Vec<_> = (0..7).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 500, 500]);
        backoff.reset();
        assert_eq!(backoff.next(), FIRST);
        let max = (0..9).map(|_| backoff.next()).max();
        assert_eq!(max, Some(Duration::from_millis(500)));
        let mut backoff = Backoff::foreground();
        let pauses: Vec<_> = (0..5).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 200]);
    }
}
