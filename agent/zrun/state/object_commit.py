"""What happens to checkpoints in an object store: shards go where they stay, and the manifest's PUT is the commit.

A prefix `step-N.attempt-A` without a manifest is no checkpoint. Of a step saved again the newer one is complete before
the older one goes. One rank does these things for all. Knows nothing about tensors.
"""

from collections.abc import Callable

from zrun.core import storage
from zrun.core.manifest import MANIFEST, Manifest, folder_name, prefix_of
from zrun.core.object_store import ObjectStore
from zrun.core.place import ObjectPath
from zrun.state.kill_points import reached


def begin(directory: ObjectPath, step: int, attempt: int, warn: Callable[[str], None]) -> ObjectPath:
    """A prefix with nothing in it to write to. Raises OSError."""
    store = storage.of(directory)
    base = f"{folder_name(step)}.attempt-{attempt}"
    taken = []
    for name in store.folders(directory):
        if prefix_of(name) == (step, attempt):
            if MANIFEST in store.files(directory / name):
                taken.append(name)
            else:
                warn(f"{name} was left unfinished by an interrupted save; removed")
                store.remove_all(directory / name)
    names = [base, *(f"{base}.{number}" for number in range(2, len(taken) + 3))]
    return directory / next(name for name in names if name not in taken)


def publish(prefix: ObjectPath, manifest: Manifest) -> ObjectPath:
    """From here on it is a checkpoint, and it is the only one of its step. Raises OSError."""
    store, directory = storage.of(prefix), prefix.parent
    reached("manifest")
    store.write(prefix / MANIFEST, manifest.to_json().encode())
    reached("rename")
    for name in store.folders(directory):
        step, attempt = prefix_of(name) or (-1, 0)
        if step == manifest.step and attempt <= manifest.attempt and name != prefix.name:
            store.remove_all(directory / name)
    return prefix


def abort_uploads(directory: ObjectPath, attempt: int) -> int:
    """Parts that dead attempts had sent of files they never finished: nobody sees them, they cost room all the same."""
    return ObjectStore(directory.scheme).abort_uploads(
        directory, lambda name: 0 < (prefix_of(name) or (0, 0))[1] < attempt
    )
