"""The table of all fields of job.yaml: name, kind of value, meaning, and what a coming version serves.

Parser, error messages, JSON schema and docs/job-yaml.md all come from here; defaults come from spec/job.py.
"""

from typing import Any, Final

from zrun.spec import job
from zrun.spec.bad_loss import ON_BAD_LOSS
from zrun.spec.block import Block, Field, Later
from zrun.spec.command import RunLine
from zrun.spec.kinds import BAD, Kind, ListOf, choice, or_word
from zrun.spec.nodes import Node, Pairs
from zrun.spec.plan import PLAN
from zrun.spec.problem import Problems
from zrun.spec.values import (
    BACKOFFS,
    BOOLEAN,
    BUDGET,
    CADENCE,
    ENV,
    FAULT,
    JOB_NAME,
    LABELS,
    LIMIT,
    MEMORY_CADENCE,
    NODES,
    PATH,
    PHASES,
    PLACE,
    PREEMPT_SIGNAL,
    REGEX,
    RESUME,
    SIGNAL,
    SIZE,
    STEP_REGEX,
    STEPS,
    TEXT,
    VARIABLE,
    duration,
    number,
    unset,
)

LEAVE_OUT: Final = "take it out for now"


class Match(Block):
    """The four ways to recognise a failure; its value is the tuple of their answers, one of them set."""

    def __init__(self) -> None:
        super().__init__(
            job.Rule,
            (
                Field("exit_code", unset(number("an exit code, 1 to 255", 1, 255)), "the worker's exit code"),
                Field("signal", unset(SIGNAL), "the signal that killed it, without SIG"),
                Field("class", unset(FAULT), "the class of the fault", ("fault",)),
                Field("regex", unset(REGEX), "searched in the exception and the last lines"),
            ),
            "one of exit_code, signal, class, regex",
        )

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        values = self.collect(node, path, problems)
        if values is BAD:
            return BAD
        if len(values) != 1:
            found = "none" if not values else "several"
            hint = "several conditions are several rules" if values else "for example {exit_code: 75}"
            problems.add(node.span, f"{path}: {found} of the conditions", expected=self.expects, suggestion=hint)
            return BAD
        return tuple(values.get(one.targets[0]) for one in self.fields)

    def show(self, value: Any) -> Any:
        return {one.name: one.kind.show(part) for one, part in zip(self.fields, value, strict=True) if part is not None}


STANDBY: Final = Block(job.Standby, (
    Field("enabled", BOOLEAN, "keep the next workers ready, with everything imported, so that a restart is a swap"),
    Field("cuda", BOOLEAN, "let a standby open the GPU as well (costs GPU memory)", later=Later("false for now")),
    Field("max_memory", SIZE, "no standby where a worker's imports need more than this", ("max_memory_bytes",)),
))  # fmt: skip

RESOURCES: Final = Block(job.Resources, (
    Field("gpus", unset(number("a number of GPUs", at_most=1024)), "GPUs a node must have"),
    Field("memory", unset(SIZE), "memory a node must have", ("memory_bytes",)),
    Field("shm", unset(SIZE), "free /dev/shm a node must have", ("shm_bytes",)),
    Field("disk", unset(SIZE), "free disk under the run's folder a node must have", ("disk_bytes",)),
))  # fmt: skip

PLACEMENT: Final = Block(job.Placement, (
    Field("hosts", ListOf(TEXT, "a list of node names"), "only these nodes", later=Later(LEAVE_OUT)),
    Field("exclude", ListOf(TEXT, "a list of node names"), "never these nodes", later=Later(LEAVE_OUT)),
    Field("labels", LABELS, "only nodes with these labels", later=Later(LEAVE_OUT)),
    Field("spares", number("a number of nodes", at_most=1000), "nodes kept waiting to take a lost one's seat",
          later=Later("0 for now")),
    Field("interface", TEXT, "network interface for the ranks; auto: found by trying", later=Later("auto for now")),
))  # fmt: skip

WATCHDOG: Final = Block(job.Watchdog, (
    Field("enabled", BOOLEAN, "watch the progress of every rank"),
    Field("on_hang", choice("restart", "notify", "stop"),
          "what to do when a hang is certain; notify: name it and touch nothing; stop: end the job, which is FAILED "
          "with the hang as its cause"),
    Field("patience", LIMIT,
          "how long a hang that cannot be proved is only suspected; auto: learned from this job's pauses",
          ("patience_s",)),
    Field("setup", LIMIT, "limit of the phase before the first step: imports, model, data; and of the `setup` commands",
          ("setup_s",)),
    Field("first_step", LIMIT, "limit of the first step, which may compile", ("first_step_s",)),
    Field("step", LIMIT, "limit of a step; auto: learned, never under min_step", ("step_s",)),
    Field("min_step", duration(0.1), "floor of the learned limit of a step", ("min_step_s",)),
    Field("eval", LIMIT, "limit of an evaluation", ("eval_s",)),
    Field("save", LIMIT, "limit of a checkpoint", ("save_s",)),
    Field("exit", LIMIT, "limit between the end of training and the end of the process", ("exit_s",)),
    Field("phases", PHASES, "limits of the script's own phases (`run.phase(NAME)`) by name; others are learned",
          ("phases_s",)),
    Field("log_pattern", STEP_REGEX, r"progress from log lines, for scripts no hook can see; needs `(?P<step>\d+)`"),
))  # fmt: skip

BUDGETS: Final = Block(job.Budgets, tuple(
    Field(name, BUDGET, f"restarts after a fault of class {name}; refills on verified progress")
    for name in ("crash", "hang", "node", "preemption", "oom", "poison", "membership")
))  # fmt: skip

RULE: Final = Block(job.Rule, (
    Field("match", Match(), "which failures; exactly one of exit_code, signal, class, regex",
          ("exit_code", "signal", "fault", "regex"), required=True),
    Field("do", choice("fail", "restart"), "fail: the job ends at once; restart: it goes on whatever the class"),
))  # fmt: skip

RESTART: Final = Block(job.Restart, (
    Field("policy", choice("on-failure", "never"), "whether faults are answered by a new attempt"),
    Field("max_restarts", number("a number of restarts", at_most=1_000_000),
          "for the whole job; refills on verified progress"),
    Field("budgets", BUDGETS, "the same per class of fault"),
    Field("max_without_progress", number("a number of attempts", 1, 1_000_000),
          "attempts in a row that may end without a new step; then the job fails"),
    Field("lease", duration(0.5), "a node silent for this long is lost", ("lease_s",)),
    Field("fence", choice("confirm", "lease"), "may a job that lives on one node be moved before its agent answered",
          later=Later("confirm for now")),
    Field("backoff", BACKOFFS,
          "pause before an attempt by class of fault, doubling from MIN to MAX; others take crash's"),
    Field("rules", ListOf(RULE, "a list of {match: {...}, do: ...}"),
          "exceptions by exit code, signal, class or text; first match wins"),
))  # fmt: skip

DATA: Final = Block(job.Data, (
    Field("quarantine_after", number("a number of attempts", at_most=1000),
          "a batch that ended this many attempts is skipped; 0: never"),
    Field("max_quarantined", number("a number of batches", at_most=1_000_000),
          "more batches than this and the job fails"),
    Field("on_bad_loss", ON_BAD_LOSS,
          "when a loss told by run.report(loss=...) is not finite, or with factor more than that many times the median "
          "of the last 100. skip: back to the newest checkpoint, and its batch is quarantined; stop: the job fails",
          ("on_bad_loss", "bad_loss_factor")),
))  # fmt: skip

KEEP: Final = Block(job.Keep, (
    Field("last", number("a number of checkpoints", 1, 1_000_000), "the newest that stay"),
    Field("every", or_word(STEPS, "off"), "checkpoints at multiples of this stay for good", ("every_steps",)),
))  # fmt: skip

CHECKPOINT: Final = Block(job.Checkpoint, (
    Field("dir", PLACE, "where; under the run's folder unless absolute, or the URL of an object store "
          "(s3://bucket/prefix, gs://…)"),
    Field("every", CADENCE, "how often", ("every_steps", "every_s")),
    Field("initial", BOOLEAN, "commit step 0 before step 1, so that even an early fault resumes the same weights"),
    Field("memory_every", MEMORY_CADENCE, "cadence of the copy in memory where a rank's death would lose what no other "
          "holds; auto: within 1 % overhead, where needed; off: no state is kept in memory, at a fault neither",
          promised="of a state on GPUs no copy is kept in memory"),
    Field("keep", KEEP, "which checkpoints stay"),
    Field("resume", RESUME, "auto: the newest valid one of this run; never: from step 0; a path or URL: from "
          "there. never and a path hold until this launch has committed a checkpoint of its own"),
))  # fmt: skip

PREEMPT: Final = Block(job.Preempt, (
    Field("signals", ListOf(PREEMPT_SIGNAL, "a list of signals"),
          "signals to `zrun launch` or an agent that mean: save and go"),
    Field("grace", duration(), "time to save and leave", ("grace_s",)),
))  # fmt: skip

NOTIFY: Final = Block(job.Notify, (
    Field("on", ListOf(choice("hang", "failed", "restarted", "succeeded", "stopped", "preempted")), "which events"),
    Field("url_secret", VARIABLE, "the secret that holds the address"),
))  # fmt: skip

LOGS: Final = Block(job.Logs, (
    Field("max_size", SIZE,
          "bytes of logs kept per job and attempt, divided over its ranks; head and tail of each log are kept, "
          "the middle goes", ("max_size_bytes",)),
    Field("line_buffered", BOOLEAN,
          "programs that are no python write line by line too (coreutils' libstdbuf.so is preloaded); "
          "python always does"),
))  # fmt: skip


class _Processes(Kind):
    """N | auto | gpu | cpu."""

    expects = "a whole number, auto, gpu or cpu"
    _count = number(expects, 1, 1024)
    _word = choice("auto", "gpu", "cpu")

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if isinstance(node, Pairs) or getattr(node, "text", "") not in {"auto", "gpu", "cpu"}:
            return self._count.read(node, path, problems)
        return self._word.read(node, path, problems)

    def show(self, value: Any) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self._count.form, self._word.form]}


JOB: Final = Block(job.JobSpec, (
    Field("version", number("1", 1, 1), "of this format"),
    Field("name", JOB_NAME, "what the job is called; runs of one name continue each other"),
    Field("nodes", NODES, "how many machines; MIN:MAX lets the job go on with fewer", ("nodes_min", "nodes_max"),
          later=Later("one number for now", lambda value: value[0] == value[1])),
    Field("nproc_per_node", _Processes(), "ranks on each node; auto: one per GPU, or one where there is none"),
    Field("run", RunLine(), "what torchrun takes after its own options: a script or -m module, and its arguments; "
          "split like a shell line, but no shell runs; a list is taken word for word"),
    Field("workdir", PATH, "where the workers run; relative to the job file's folder, which is the default"),
    Field("setup", unset(TEXT), "bash commands, once a node before attempt 1; their failure ends the job"),
    Field("env", ENV, "variables for the workers; values keep the file's text (3e-4, 010, no)"),
    Field("secrets", ListOf(VARIABLE, "a list of variable names"),
          "names only; values come from the submitter's environment and are never written anywhere"),
    Field("python", unset(PATH),
          "the interpreter of the workers, with a / relative to workdir; default: the one that runs zrun"),
    Field("launcher", choice("auto", "warm", "torchrun", "exec"),
          "how workers start; auto, warm: the first attempt, and jobs on several nodes, through torchrun, later ones "
          "from standbys; torchrun: always through it",
          later=Later("auto, warm or torchrun for now", lambda value: value in ("warm", "torchrun"))),
    Field("seed", number("a whole number, 0 or more"),
          "ZRUN_SEED; seeds Python, NumPy and torch, and the order of samples"),
    Field("rng", choice("derived", "stream"),
          "derived: randomness follows from (seed, rank, step); stream: the script's own streams are saved"),
    Field("standby", STANDBY, "the next workers, waiting"),
    Field("resources", RESOURCES, "checked on each node before the start"),
    Field("placement", PLACEMENT, "which nodes"),
    Field("watchdog", WATCHDOG, "limits per phase: auto (learned) or a duration"),
    Field("restart", RESTART, "what happens after a fault"),
    Field("data", DATA, "batches that make the job fail"),
    Field("checkpoint", CHECKPOINT, "what is saved, where and how often"),
    Field("preempt", PREEMPT, "leaving when the machine is taken away"),
    Field("notify", ListOf(NOTIFY, "a list of {on: [...], url_secret: NAME}"), "messages to people",
          later=Later(LEAVE_OUT)),
    Field("logs", LOGS, "what is kept of the workers' output"),
    Field("max_duration", or_word(duration(), "off"), "wall time after which the job is stopped", ("max_duration_s",)),
    Field("stop_grace", duration(above_zero=False), "time a stopping job has to save and end", ("stop_grace_s",)),
    Field("plan", PLAN, "what `zrun plan` is told of model, machines and batch; a run itself does not read it"),
    Field("labels", LABELS, "free words for lists and filters"),
))  # fmt: skip


def paths(block: Block = JOB, prefix: str = "") -> tuple[str, ...]:
    """The dotted names of all fields."""
    found: list[str] = []
    for one in block.fields:
        found.append(prefix + one.name)
        if isinstance(one.kind, Block):
            found += paths(one.kind, f"{prefix}{one.name}.")
    return tuple(found)
