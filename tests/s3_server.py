"""A local S3 for tests: moto's server as a process of its own, on a port of its own. Knows nothing about checkpoints."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKET = "runs"


@dataclass(frozen=True)
class S3Server:
    """`env`: what a process needs to find it."""

    url: str
    env: dict[str, str]

    def post(self, path: str, body: bytes) -> None:
        request = urllib.request.Request(
            f"{self.url}/moto-api/{path}", body, {"Content-Type": "text/plain"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=10):
            pass

    def reset(self) -> None:
        """Nothing but one empty bucket; anybody may do anything."""
        self.post("reset", b"")
        self.post("reset-auth", b"inf")
        self.client().call_s3("create_bucket", Bucket=BUCKET)

    def ask_for_credentials(self) -> None:
        """From now on those that are not known are refused; nobody's are."""
        self.post("reset-auth", b"0")

    def client(self) -> Any:
        import s3fs

        return s3fs.S3FileSystem(
            key="tester", secret="tester", endpoint_url=self.url, use_listings_cache=False, skip_instance_cache=True
        )

    def flip(self, key: str, at: int) -> None:
        """One bit of an object."""
        client = self.client()
        raw = bytearray(client.cat_file(f"{BUCKET}/{key}"))
        raw[at] ^= 1
        client.pipe_file(f"{BUCKET}/{key}", bytes(raw))

    def uploads(self) -> list[str]:
        """Keys of what was begun in parts and never finished."""
        return [str(one["Key"]) for one in self.client().list_multipart_uploads(BUCKET)]

    def keys(self, prefix: str = "") -> list[str]:
        """All objects whose key begins so, without the bucket."""
        found = [str(key).partition("/")[2] for key in self.client().find(BUCKET)]
        return sorted(key for key in found if key.startswith(prefix))


@contextmanager
def served(log: Path) -> Iterator[S3Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=out, stderr=out
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    env = {
        "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "tester",
        "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not _answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield S3Server(url, env)
    finally:
        process.kill()  # it has nothing to put in order
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=5) as answer:
            return isinstance(json.load(answer), dict)
    except OSError:
        return False
