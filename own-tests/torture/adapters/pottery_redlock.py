"""pottery's Redlock, as its README shows, on one server or on several."""

import sys

from protocol import serve
from pottery import Redlock, ReleaseUnlockedLock
from redis import Redis

masters = {Redis.from_url(url) for url in sys.argv[2:]}


def acquire(key, lease_ms, wait_ms):
    lock = Redlock(key=key, masters=masters, auto_release_time=lease_ms / 1000)
    got = lock.acquire(timeout=wait_ms / 1000) if wait_ms else lock.acquire(blocking=False)
    return lock if got else None


def release(lock):
    try:
        lock.release()
        return True
    except ReleaseUnlockedLock:
        return False


serve(acquire, lambda lock: bool(lock.locked()), release)
