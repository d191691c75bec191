"""`python -m zrun.core.store_look WHAT URL [NAME …]`: what a store says to a process with a job's python and variables.

Whoever asks has other ones, and must not take the job's credentials as its own. scan: whose checkpoints lie there; it
may write, too. leave NAME: make a sign, and take older ones away. seen NAME SECONDS: is it there by then? One line of
JSON comes back: {"error", "hint"} or {"made"} or {"seen"}. Decides nothing.
"""

import json
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from zrun.core import storage
from zrun.core.errors import StoreError
from zrun.core.manifest import CONTROL, scan
from zrun.core.place import Place, place_of

SIGN: Final = "nonce-"
_AGAIN_S: Final = 0.3


def _scan(place: Place) -> dict[str, Any]:
    store, own = storage.of(place), place / CONTROL / f"looked-{secrets.token_hex(6)}"
    made = [one.manifest for one in scan(place) if one.manifest]
    store.write(own, b"here\n")
    store.remove(own)
    return {"made": [{"job": one.job, "name": one.name, "saved_at": one.saved_at} for one in made]}


def _leave(place: Place, name: str) -> dict[str, Any]:
    store = storage.of(place)
    for old in store.files(place / CONTROL):
        if old.startswith(SIGN):
            store.remove(place / CONTROL / old)
    store.write(place / CONTROL / name, b"here\n")
    return {"seen": True}


def _seen(place: Place, name: str, within: str) -> dict[str, Any]:
    until = time.monotonic() + float(within)
    while True:
        if storage.of(place).exists(place / CONTROL / name):
            return {"seen": True}
        if time.monotonic() >= until:
            return {"seen": False}
        time.sleep(_AGAIN_S)


_ACTS: Final[dict[str, Callable[..., dict[str, Any]]]] = {"scan": _scan, "leave": _leave, "seen": _seen}


def main() -> None:
    act, url, *rest = sys.argv[1:]
    try:
        answer = _ACTS[act](place_of(url), *rest)
    except StoreError as error:
        answer = {"error": str(error), "hint": error.hint}
    except OSError as error:
        answer = {"error": f"{url}: {error.strerror or error}", "hint": ""}
    print(json.dumps(answer))


def answer_in(text: str, trouble: str) -> dict[str, Any]:
    """What such a process said; its last words if it came to no answer."""
    for line in reversed(text.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    said = trouble.strip().splitlines() or ["it said nothing"]
    return {"error": f"the store could not be asked: {said[-1][:300]}", "hint": ""}


if __name__ == "__main__":
    main()
