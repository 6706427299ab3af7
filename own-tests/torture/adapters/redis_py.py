"""redis-py's Lock, as https://redis.readthedocs.io/en/stable/lock.html describes it."""

import sys

from protocol import serve
from redis import Redis
from redis.exceptions import LockNotOwnedError

redis = Redis.from_url(sys.argv[2])


def acquire(key, lease_ms, wait_ms):
    lock = redis.lock(key, timeout=lease_ms / 1000, blocking=wait_ms > 0, blocking_timeout=wait_ms / 1000)
    return lock if lock.acquire() else None


def release(lock):
    try:
        lock.release()
        return True
    except LockNotOwnedError:
        return False


serve(acquire, lambda lock: lock.owned(), release)
