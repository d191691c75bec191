"""Real sockets: no agent harms another, the stream delivers, and what nobody should send is answered with a reason."""

import contextlib
import json
import threading
from typing import Any

import httpx2
import pytest
import schemathesis
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from zrun.wire.frames import LARGEST_UP


@pytest.fixture
def pair(serve: Any, agent: Any) -> Any:
    """A coordinator, an honest agent and a second connection for mischief."""
    served = serve()
    honest = agent(served, node="honest")
    honest.report()
    return served, honest, agent(served, node="odd")


def still_served(honest: Any, kit: Any) -> None:
    """Every fifth report is acknowledged."""
    since = honest.serial
    for _ in range(6):
        honest.report()
    while honest.expect(kit.Order).acked <= since:
        pass


def test_garbage_text_and_giant_frames_close_their_own_connection_alone(pair: Any, agent: Any, kit: Any) -> None:
    served, honest, odd = pair
    odd.socket.send(b"\xc1 nothing that msgpack knows")
    code, reason = odd.closed()
    assert code == 1008
    assert "a frame that no agent sends" in reason
    talker = agent(served, node="talker")
    talker.socket.send("text")
    assert talker.closed()[0] == 1008
    giant = agent(served, node="giant")
    with contextlib.suppress(ConnectionClosed):  # it may be closed while the rest of the frame is still on its way
        giant.socket.send(b"x" * (LARGEST_UP + 1))
    assert giant.closed()[0] in {0, 1008, 1009}  # 0: the reset overtook the reason
    impostor = agent(served, node="impostor")
    impostor.node = "honest"
    impostor.report()
    assert impostor.closed()[0] == 1008
    still_served(honest, kit)


def test_another_protocol_a_taken_name_and_a_bad_name_get_a_goodbye_with_the_way_out(pair: Any, kit: Any) -> None:
    served, honest, _ = pair
    for hello, why in (
        ({"protocol": 99}, "install the same zrun on both"),
        ({"node": "honest", "boot": "other"}, "connected already"),
        ({"node": "../x"}, "no name for a node"),
    ):
        one = kit.FakeAgent(served)
        one.connect(**hello)
        assert why in one.expect(kit.Goodbye).why
        assert one.closed()[0] == 1008
        one.close()
    still_served(honest, kit)


def test_an_agent_without_the_token_gets_401(pair: Any) -> None:
    served, _, _ = pair
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://127.0.0.1:{served.port}/api/agents", additional_headers=headers, legacy=True)
        assert refused.value.response.status_code == 401


def test_the_stream_delivers_changes_over_http(serve: Any, agent: Any, kit: Any, tmp_path: Any) -> None:
    served = serve()
    seen: list[tuple[str, str]] = []
    ready, done = threading.Event(), threading.Event()

    def follow() -> None:
        with served.http() as client, client.stream("GET", "/api/stream") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            ready.set()
            event: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                event[name] = value
                if not line and "data" in event:
                    status = json.loads(event["data"])
                    seen.append((event["id"], status["state"]))
                    event = {}
                    if status["state"] == "RUNNING":
                        break
        done.set()

    reader = threading.Thread(target=follow)
    reader.start()
    assert ready.wait(10)
    body = {"spec": kit.spec_to_dict(kit.spec("s")), "run_dir": str(tmp_path / "s-0001")}
    served.post("/api/jobs", body, 201)
    one = agent(served)
    one.report()
    one.order("s-0001", lambda o: o.run is not None)
    one.report("s-0001", doing=kit.Doing.RUNNING, attempt=1, seen=1, rows=kit.rows(4), resumed_step=0)
    assert done.wait(20), seen
    reader.join()
    assert seen[-1][1] == "RUNNING"
    assert [int(n) for n, _ in seen] == sorted(int(n) for n, _ in seen)


def test_a_stream_does_not_keep_the_coordinator_from_ending(serve: Any) -> None:
    served = serve()
    with served.http() as client, client.stream("GET", "/api/stream"):
        served.process.terminate()
        assert served.ended() == 7


def test_stacks_reach_the_agents_of_the_job(serve: Any, agent: Any, kit: Any, tmp_path: Any) -> None:
    served = serve()
    served.post("/api/jobs", {"spec": kit.spec_to_dict(kit.spec("s")), "run_dir": str(tmp_path / "s-0001")}, 201)
    one = agent(served)
    one.report()
    one.order("s-0001", lambda o: o.run is not None)
    taken = served.post("/api/jobs/s/stacks")
    asked = one.expect(kit.Stacks)
    assert asked.job == "s-0001"
    assert asked.into.endswith(f"s-0001/stacks/{taken['taken']}")


def test_no_request_that_follows_the_api_description_breaks_the_coordinator(
    serve: Any, kit: Any, tmp_path: Any
) -> None:
    served = serve()
    body = {"spec": kit.spec_to_dict(kit.spec("s")), "run_dir": str(tmp_path / "s-0001")}
    served.post("/api/jobs", body, 201)
    schema = schemathesis.openapi.from_dict(served.get("/api/openapi.json"))
    schema.config.base_url = served.address
    headers = {"Authorization": f"Bearer {served.token}"}
    calls = 0
    for operation in schema.get_all_operations():
        found: Any = operation.ok()  # type: ignore[union-attr]
        if found.path in {"/api/stream", "/login", "/logout"}:
            continue
        for case in _cases(found, 8):
            answer = case.call(headers=headers)
            calls += 1
            assert answer.status_code < 500, (case.formatted_path, case.query, answer.text)
    assert calls > 100
    assert httpx2.get(f"{served.address}/healthz").status_code == 200


def _cases(operation: Any, count: int) -> list[Any]:
    import hypothesis

    found: list[Any] = []

    @hypothesis.settings(
        max_examples=count, database=None, deadline=None, derandomize=True, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(operation.as_strategy())
    def collect(case: Any) -> None:
        found.append(case)

    collect()
    return found
