"""Stands in for coordinator and agent: `fake_program.py KIND RUN_DIR [PORT]`; what it does is read from RUN_DIR/KIND.plan.

A plan is a list of lives, one taken at each start: {"for_s": …, "exit": …, "verdict": STATE, "serve": true}.
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

kind, folder = sys.argv[1], Path(sys.argv[2])
port = int(sys.argv[3]) if len(sys.argv) > 3 else 0
started = folder / f"{kind}.starts"
with started.open("a") as file:
    file.write(f"{os.getpid()} {port}\n")
lives = json.loads((folder / f"{kind}.plan").read_text())
life = lives[min(len(started.read_text().splitlines()), len(lives)) - 1]
over = threading.Event()


def on_term(*_: object) -> None:
    with (folder / f"{kind}.terms").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if not life.get("deaf"):
        os._exit(life.get("on_term", 7))


signal.signal(signal.SIGTERM, on_term)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        verdict = folder / "verdict.json"
        self.answer(json.loads(verdict.read_text()) if verdict.exists() else {"job": folder.name, "state": "RUNNING"})

    def do_POST(self) -> None:
        with (folder / "told").open("a") as file:
            file.write(self.path.rpartition("/")[2] + "\n")
        self.answer({"job": folder.name})
        if life.get("ends_when_told"):
            over.set()

    def answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if life.get("serve"):
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    temporary = folder / ".coordinator.json"
    temporary.write_text(json.dumps({"address": f"http://127.0.0.1:{server.server_port}", "pid": os.getpid()}))
    temporary.replace(folder / "coordinator.json")
if life.get("orphan") and os.fork() == 0:
    os.setsid()
    (folder / "orphan").write_text(str(os.getpid()))
    time.sleep(life["orphan"])
    os._exit(0)
over.wait(life.get("for_s", 0))
if life.get("verdict"):
    (folder / "verdict.json").write_text(json.dumps({"job": folder.name, "name": "fake", "state": life["verdict"]}))
if life.get("says"):
    print(life["says"], flush=True)
time.sleep(life.get("linger_s", 0))
os._exit(life.get("exit", 0))
