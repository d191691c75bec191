"""One batch of a run again: the job's script in a single process of this terminal, which Session ends after that batch.

There are no other ranks, no agent and no checkpoints; the process looks to the script like a world of one.
"""

import json
import subprocess
import sys

from zrun.agent.launch import free_port, link_rank_path, python_of
from zrun.cli.lookup import read_json
from zrun.core import env
from zrun.core.batch import BatchId
from zrun.core.batches import DataFacts
from zrun.core.errors import Exit, UsageError
from zrun.core.runfolder import RunFolder
from zrun.core.settings import RankSettings
from zrun.spec.job import JobSpec, spec_from_dict


def replayed(run: RunFolder, facts: DataFacts, skip: list[str], batch: str, *, debug: bool) -> int:
    """Exit code 0 if the script did its step. Raises UsageError for what is no name of a batch."""
    try:
        BatchId.parse(batch)
    except ValueError as error:
        raise UsageError(str(error)) from error
    spec = spec_from_dict(read_json(run.spec_json))
    link_rank_path(run.rank_path)
    left_out = sorted({*facts.skip, *skip})
    asked = {"batch": batch, "ended": facts.ended, "debug": debug}
    command = [python_of(spec), "-m", "zrun.worker", *spec.run]
    try:
        done = subprocess.run(
            command,
            cwd=spec.workdir,
            env=_environment(run, spec, left_out) | {env.REPLAY: json.dumps(asked)},
            check=False,
        )
    except OSError as error:
        raise UsageError(f"cannot run {command[0]} in {spec.workdir}: {error.strerror}") from error
    if done.returncode:
        print(f"zrun: the script ended with code {done.returncode} on batch {batch}", file=sys.stderr)
    return Exit.DONE if done.returncode == 0 else Exit.OWN_FAILURE


def _environment(run: RunFolder, spec: JobSpec, left_out: list[str]) -> dict[str, str]:
    """As a rank's, but alone; secrets come from this terminal's own environment."""
    own, _ = env.without_launchers(env.snapshot())
    asked, _ = env.without_launchers(spec.env, asked=True)
    kept = own | asked
    settings = RankSettings(seed=spec.seed, rng=spec.rng, resume="never", save_initial=False, quarantined=left_out)
    return kept | {
        "PYTHONPATH": ":".join(p for p in (kept.get("PYTHONPATH", ""), str(run.rank_path)) if p),
        "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "ROLE_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "GROUP_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        env.JOB: run.job, env.NAME: spec.name, env.SEED: str(spec.seed), env.SETTINGS: settings.to_json(),
    }  # fmt: skip
