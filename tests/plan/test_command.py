"""`zrun plan` as a person and a program see it: options, the file's block, table, JSON, errors with the way out."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zrun.cli import registry
from zrun.cli.main import main
from zrun.core.errors import Exit
from zrun.plan import measuring
from zrun.plan.measuring import Measurement, fitted

Captured = pytest.CaptureFixture[str]
BIG = ["plan", "--params", "27B", "--world", "64", "--memory", "80GB"]
FULL = [
    *BIG, "--wrap", "16x(3x420M,427.5M)", "--layers", "64", "--deltanet-layers", "48", "--hidden", "5120", "--heads", "40",
    "--vocabulary", "150000", "--sequence", "4096", "--intra", "450GB/s", "--inter", "400Gb/s", "--flops", "989T",
    "--storage", "20GB/s", "--staging", "10GB/s", "--checkpointing", "full",
]  # fmt: skip


def told(capsys: Captured, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def choice(found: dict[str, Any], label: str) -> dict[str, Any]:
    one: dict[str, Any] = next(row for row in found["choices"] if row["label"] == label)
    return one


def test_the_json_has_what_was_promised(capsys: Captured) -> None:
    found = told(capsys, *FULL)
    assert (found["params"], found["world"], found["recipe"]["name"]) == (27_000_000_000, 64, "mixed")
    assert {row["strategy"] for row in found["choices"]} == {
        "ddp", "zero1", "zero2", "zero3", "fsdp-noreshard", "hsdp", "hpz", "mics",
    }  # fmt: skip
    for row in found["choices"]:
        assert set(row["persistent_bytes"]) == {"parameters", "gradients", "optimizer", "total"}
        assert row["fits"] in {"yes", "barely", "no"}
        assert row["peak_bytes"] >= row["persistent_bytes"]["total"]
        assert set(row["wire_bytes"]) == {"intra", "inter"}
        assert row["step_floor_s"] > 0
    assert (found["checkpoint"]["bytes"], found["checkpoint"]["save_s"]) == (378_000_000_000, 18.9)
    assert found["checkpoint"]["interval_s"] > 0
    assert 0.9 < found["ettr"]["expected"] < 1
    assert [row["rate"] for row in found["ettr"]["published"]] == ["rsc-1", "rsc-2", "llama-3"]
    assert found["notes"] == []


def test_the_figures_of_27_billion_on_64_ranks_are_in_the_table(capsys: Captured) -> None:
    assert main(BIG) == 0
    out = capsys.readouterr().out
    cells = {line.split()[0]: line.split()[1:5] for line in out.splitlines() if line[:4] in {"ddp ", "zero"}}
    assert cells["ddp"] == ["54.00", "54.00", "324.00", "432.00"]
    assert cells["zero1"] == ["54.00", "54.00", "5.06", "113.06"]
    assert cells["zero2"] == ["54.00", "0.844", "5.06", "59.91"]
    assert cells["zero3"] == ["0.844", "0.844", "5.06", "6.75"]
    assert "weights alone 54.00 GB" in out


def test_wraps_are_compared_by_peak_and_collectives(capsys: Captured) -> None:
    layers, blocks = told(capsys, *FULL)["wraps"]
    assert (layers["units"], layers["collectives"]) == (64, 194)
    assert (blocks["units"], blocks["largest_unit"], blocks["collectives"]) == (16, 1_687_500_000, 50)
    assert blocks["peak_bytes"] > layers["peak_bytes"]


def test_what_is_not_counted_is_said_with_the_option_that_counts_it(capsys: Captured) -> None:
    found = told(capsys, *BIG)
    row = choice(found, "zero3")
    assert (row["peak"]["activations"], row["largest_micro_batch"], row["step_floor_s"]) == (None, None, None)
    text = " ".join(found["notes"])
    assert all(word in text for word in ("--wrap", "--hidden", "--intra", "--flops", "--storage"))
    assert found["ettr"] is None


def test_a_choice_bound_by_the_slow_fabric_is_named(capsys: Captured) -> None:
    slow = told(capsys, *FULL, "--inter", "1GB/s")
    assert choice(slow, "zero3")["bound"] == "inter"
    assert choice(slow, "zero3")["step_floor_s"] == choice(slow, "zero3")["wire_s"]
    fast = told(capsys, *FULL, "--inter", "4TB/s")
    assert choice(fast, "zero3")["bound"] == "compute"
    assert slow["best"]["strategy"] != "zero3"  # groups send less between nodes


def test_assumed_numbers_are_named_and_told_ones_are_not(capsys: Captured) -> None:
    assert set(told(capsys, *FULL)["origins"]) == {"detection_s", "restart_s", "failures", "stall_s"}
    given = told(capsys, *FULL, "--detection", "3s", "--restart", "1m", "--failures", "4", "--stall", "2s")
    assert given["origins"] == {}
    assert (given["ettr"]["detection_s"], given["ettr"]["restart_s"], given["ettr"]["stall_s"]) == (3.0, 60.0, 2.0)


def test_own_incidents_replace_what_is_assumed(capsys: Captured, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "toy-0000aa"
    folder.mkdir(parents=True)
    rows = [{"detected_s": 2.0, "recovered_s": 30.0}] * 3
    (folder / "verdict.json").write_text(json.dumps({"incidents": rows}))
    registry.remember("toy-0000aa", "toy", folder)
    found = told(capsys, *FULL)
    assert found["ettr"]["detection_s"] == 2.0
    assert found["ettr"]["restart_s"] == pytest.approx(30.0 + 18.9)  # and the load of this state
    assert "3 incidents of this installation" in found["origins"]["detection_s"]


def test_the_files_block_is_read_and_options_come_over_it(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: toy\nrun: t.py\nnodes: 8\nnproc_per_node: 8\ncheckpoint: {every: 30m}\n"
        "plan: {params: 27B, memory: 80GB, storage: 20GB/s, headroom: 5%}\n"
    )
    found = told(capsys, "plan", str(file))
    assert (found["world"], found["nodes"], found["params"], found["headroom"]) == (64, 8, 27_000_000_000, 0.05)
    assert found["ettr"]["configured"]["interval_s"] == 1800.0
    over = told(capsys, "plan", str(file), "--params", "7B", "--world", "16", "--set", "plan.headroom=20%")
    assert (over["world"], over["params"], over["headroom"]) == (16, 7_000_000_000, 0.2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to plan for"),
        (["--params", "27Q", "--memory", "80", "--world", "x"], "for example 27B"),
        (["--params", "1B"], "give --world"),
        (["--params", "1B", "--world", "12"], "do not fill nodes of 8"),
        (["--params", "1B", "--world", "8", "--recipe", "foo"], "mixed, bf16, 8bit, fp32"),
        (["--params", "1B", "--world", "8", "--intra", "450GB"], "450GB/s"),
        (["--params", "1B", "--world", "8", "--failures", "often"], "rsc-1"),
        (["--params", "1B", "--world", "8", "--set", "a=b"], "zrun plan job.yaml --set"),
        (["--params", "1B", "--world", "8", "--layers", "4", "--hidden", "10", "--heads", "3", "--sequence", "8"], "--head-width"),
        (["--model", "nowhere.safetensors", "--world", "8"], "No such file"),
        (["none.yaml"], "no such file"),
    ],
)  # fmt: skip
def test_mistakes_end_with_2_and_the_way_out(capsys: Captured, arguments: list[str], says: str) -> None:
    assert main(["plan", *arguments]) == Exit.WRONG_USE
    assert says in capsys.readouterr().err


def test_every_mistake_of_the_options_comes_at_once(capsys: Captured) -> None:
    assert main(["plan", "--params", "27Q", "--memory", "80", "--world", "x"]) == Exit.WRONG_USE
    shown = capsys.readouterr().err
    assert all(f"--{name} " in shown for name in ("params", "memory", "world"))


def test_every_field_of_the_block_is_an_option(capsys: Captured) -> None:
    from zrun.spec.plan import PLAN, option

    assert main(["plan", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(option(one.name) in shown for one in PLAN.fields)


def test_planning_imports_no_torch() -> None:
    program = (
        "import sys\nfrom zrun.cli.main import main\nmain(sys.argv[1:])\nprint('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *FULL], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False", done.stderr


def test_a_line_through_the_sweep_gives_rate_and_latency() -> None:
    rows = [
        {"op": op, "bytes": count, "seconds": rounds * 3 * 1e-5 + rounds * 0.75 * count / 2e9}
        for op, rounds in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2))
        for count in (4096, 1 << 20, 16 << 20)
    ]
    rate, hop = fitted(rows, 4)
    assert rate == pytest.approx(2e9)
    assert hop == pytest.approx(1e-5, rel=0.2)


def test_a_kept_measurement_fills_in_what_is_not_told(capsys: Captured) -> None:
    path = registry.state_folder() / "links.json"
    assert measuring.kept(path) is None
    measuring.keep(path, Measurement("elsewhere", "2026-01-01T00:00:00Z", "gloo", 2, 1e9, 1e-3, []))
    here = Measurement(os.uname().nodename, "2026-01-02T00:00:00Z", "gloo", 2, 2e9, 1e-5, [])
    measuring.keep(path, here)
    assert measuring.kept(path) == here
    found = told(capsys, "plan", "--params", "1B", "--world", "8")
    assert "2026-01-02" in found["origins"]["intra"]
    assert choice(found, "zero3")["wire_s"] == pytest.approx(3 * 7 / 8 * 2e9 / 2e9, rel=0.01)
    assert "intra" not in told(capsys, "plan", "--params", "1B", "--world", "8", "--intra", "1GB/s")["origins"]
    path.write_text("[]")
    assert measuring.kept(path) is None


@pytest.mark.e2e
def test_measuring_times_local_ranks_and_keeps_host_and_date(capsys: Captured) -> None:
    found = told(capsys, "plan", "--params", "1B", "--world", "2", "--measure")
    kept = json.loads((registry.state_folder() / "links.json").read_text())[os.uname().nodename]
    assert (kept["backend"], kept["ranks"], len(kept["rows"])) == ("gloo", 2, 15)
    assert kept["measured_at"].endswith("Z")
    assert kept["intra"] > 0
    assert all(row["seconds"] > 0 for row in kept["rows"])
    assert kept["measured_at"] in found["origins"]["intra"]
    assert choice(found, "zero3")["wire_s"] > 0


def test_measuring_wraps_needs_a_model_and_a_loss(capsys: Captured) -> None:
    assert main([*BIG, "--measure-wrap"]) == Exit.WRONG_USE
    assert "--loss MODULE:CALLABLE" in capsys.readouterr().err


@pytest.mark.e2e
@pytest.mark.long
def test_measured_wraps_have_the_collectives_that_were_computed(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    found = told(
        capsys, "plan", "--model", "hybrid_model:build", "--loss", "hybrid_model:loss", "--world", "2", "--recipe", "fp32",
        "--measure-wrap",
    )  # fmt: skip
    rows = {row["wrap"]: row for row in found["measured_wraps"]["rows"]}
    assert set(rows) == {"layer", "superblock", "auto"}
    for computed in found["wraps"]:
        real = rows[computed["wrap"]]
        assert real["units"] == computed["units"]
        assert sum(real["collectives"].values()) == computed["collectives"]
        assert computed["peak_bytes"] == pytest.approx(real["peak_bytes"], rel=0.25)
        assert real["step_s"] > 0
    assert rows["auto"]["peak_bytes"] > 0
