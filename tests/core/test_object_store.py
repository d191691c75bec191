"""An object store as a store of checkpoints, tried against a local S3."""

import json
import subprocess
import sys

import pytest
from tests.s3_server import S3Server

from zrun.core import object_store, storage
from zrun.core.errors import StoreError
from zrun.core.object_files import PART, WINDOW
from zrun.core.object_store import ObjectStore
from zrun.core.place import Place, place_of
from zrun.core.store_errors import RefusedError

HERE = place_of("s3://runs/a")


def test_objects_are_listed_as_folders_and_files(s3: S3Server) -> None:
    store = storage.of(HERE)
    assert (store.folders(HERE), store.files(HERE), store.exists(HERE)) == ([], {}, False)
    store.write(HERE / "one", b"12")
    store.write(HERE / "deep" / "er", b"123")
    store.write(place_of("s3://runs/ab"), b"a neighbour")
    assert (store.folders(HERE), store.files(HERE), store.exists(HERE)) == (["deep"], {"one": 2}, True)
    assert store.contents(HERE)[0] == 5
    assert [store.remove(HERE / "one"), store.remove(HERE / "one")] == [True, False]
    store.remove_all(HERE)
    assert s3.keys() == ["ab"]


def test_only_the_first_creates(s3: S3Server) -> None:
    store = storage.of(HERE)
    assert store.create(HERE / "claim-1", b"mine")
    with pytest.raises(FileExistsError):
        store.create(HERE / "claim-1", b"theirs")
    assert store.read(HERE / "claim-1") == b"mine"


def test_one_that_looked_at_the_same_moment_is_refused_by_the_store(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore("s3")
    store.write(HERE / "claim-1", b"theirs")
    monkeypatch.setattr(store, "exists", lambda place: False)
    with pytest.raises(FileExistsError):
        store.create(HERE / "claim-1", b"mine")
    assert store.read(HERE / "claim-1") == b"theirs"


def test_a_store_without_conditional_puts_is_written_read_back_and_said_so(s3: S3Server) -> None:
    class Older(ObjectStore):
        @property
        def _client(self) -> object:
            client = super()._client

            class Client:
                def __getattr__(self, name: str) -> object:
                    return getattr(client, name)

                def pipe_file(self, key: str, data: bytes, mode: str = "overwrite") -> object:
                    if mode == "create":
                        raise NotImplementedError
                    return client.pipe_file(key, data)

            return Client()

    assert Older("s3").create(HERE / "claim-1", b"mine") is False
    assert storage.of(HERE).read(HERE / "claim-1") == b"mine"


def test_a_file_is_seen_when_it_is_finished_and_not_before(s3: S3Server) -> None:
    store, data = storage.of(HERE), bytes(range(256)) * (PART // 100)
    with store.new_file(HERE / "f", len(data)) as file:
        file.write(memoryview(data))
        assert s3.uploads() == ["a/f"]
        assert s3.keys() == []
        file.finish()
    assert (s3.uploads(), store.read(HERE / "f") == data) == ([], True)


def test_a_file_that_is_not_finished_leaves_nothing(s3: S3Server) -> None:
    with storage.of(HERE).new_file(HERE / "f", 3 * PART) as file:
        file.write(memoryview(bytes(2 * PART)))
    assert (s3.uploads(), s3.keys()) == ([], [])


def test_small_reads_are_answered_from_one_window(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store, data = ObjectStore("s3"), bytes(range(251)) * (WINDOW // 200)
    store.write(HERE / "f", data)
    store.write(HERE / "manifest.json", b"{}")
    asked: list[tuple[int, int]] = []
    real = store._range

    def told(place: Place, start: int, end: int) -> bytes:
        asked.append((start, end))
        return real(place, start, end)

    monkeypatch.setattr(store, "_range", told)
    with store.held(HERE) as folder:
        file = folder.open("f")
        for at in (0, 1000, WINDOW - 10, len(data) - 5):
            got = bytearray(20)
            count = file.read_into(memoryview(got), at)
            assert got[:count] == data[at : min(at + 20, WINDOW) if at < WINDOW else at + 20]
        large = bytearray(WINDOW)
        assert file.read_into(memoryview(large), 7) == WINDOW
        assert large == data[7 : 7 + WINDOW]
        assert file.read_into(memoryview(large), len(data)) == 0
    assert asked == [(0, WINDOW), (WINDOW, len(data)), (7, 7 + WINDOW)]


def test_what_may_pass_is_tried_again_with_growing_pauses_and_then_given_up(s3: S3Server) -> None:
    pauses: list[float] = []
    tried: list[int] = []

    def act() -> None:
        tried.append(1)
        raise RefusedError("busy", "", frozenset({"SlowDown"}), passing=True)

    with pytest.raises(RefusedError, match="busy"):
        ObjectStore("s3", sleep=pauses.append).again(act)
    assert (len(tried), len(pauses)) == (object_store.TRIES, object_store.TRIES - 1)
    assert all(0.5 * 2**n <= pause <= 2**n for n, pause in enumerate(pauses))


def test_a_missing_bucket_is_named_and_not_taken_for_an_empty_one(s3: S3Server) -> None:
    place = place_of("s3://not-there/a")
    for act in (storage.of(place).files, storage.of(place).exists, storage.of(place).read):
        with pytest.raises(StoreError, match="there is no bucket s3://not-there") as caught:
            act(place)
        assert "checkpoint.dir" in caught.value.hint


def test_wrong_and_missing_credentials_are_named_with_the_way_out(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.ask_for_credentials()
    with pytest.raises(StoreError, match="s3://runs does not take these credentials") as caught:
        storage.of(HERE).files(HERE)
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    object_store.forget_clients()
    with pytest.raises(StoreError, match="no credentials for s3://runs"):
        storage.of(HERE).files(HERE)


@pytest.mark.parametrize(("scheme", "client", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")])
def test_a_python_without_the_client_is_told_which_extra_brings_it(scheme: str, client: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{client!r}] = None; sys.argv = ['', 'scan', '{scheme}://b/x']\n"
        "import zrun.core.store_look as look; look.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    told = json.loads(done.stdout)
    assert told["error"] == f"{scheme}:// needs {client}, which {sys.executable} does not have"
    assert f"zrun[{extra}]" in told["hint"]
