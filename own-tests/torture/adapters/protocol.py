"""The loop of an adapter in Python: reads commands, asks the library, and writes replies."""

import json
import sys


def serve(acquire, check, release):
    """Serves until the input closes.

    acquire(key, lease_ms, wait_ms) returns what is held, or None. check(held) and release(held) return
    whether it is, or was, still held.
    """

    def reply(got, **more):
        print(json.dumps({"got": got, **more}), flush=True)

    held = None
    reply("ready")
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "acquire":
                held = acquire(command["key"], command["lease_ms"], command["wait_ms"])
                reply("held" if held is not None else "free")
            elif command["do"] == "check":
                reply("held" if held is not None and check(held) else "free")
            elif command["do"] == "pass":
                reply("ready")
            else:
                had, held = held, None
                reply("held" if had is not None and release(had) else "free")
        except Exception as error:  # Whatever the library says goes into the history.
            reply("error", text=f"{type(error).__name__}: {error}")
