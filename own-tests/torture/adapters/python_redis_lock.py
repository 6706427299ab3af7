"""python-redis-lock, renewed, as its README shows. Leases are in seconds there, and waits too."""

import sys

from protocol import serve
from redis import StrictRedis
from redis_lock import Lock, NotAcquired

conn = StrictRedis.from_url(sys.argv[2])


def acquire(key, lease_ms, wait_ms):
    lock = Lock(conn, key, expire=max(1, lease_ms // 1000), auto_renewal=True)
    if wait_ms == 0:
        return lock if lock.acquire(blocking=False) else None
    return lock if lock.acquire(timeout=max(1, wait_ms // 1000)) else None


def release(lock):
    try:
        lock.release()
        return True
    except NotAcquired:
        return False


# A user who wants to be sure compares the ids.
serve(acquire, lambda lock: lock.get_owner_id() == lock.id, release)
