"""The table of all commands: where each lives and what it does in one line; imports none of them."""

from dataclasses import dataclass
from importlib import import_module
from typing import Final

import click


@dataclass(frozen=True, slots=True)
class Entry:
    """One command: `module` under zrun.cli, `attribute` in it, the line shown by `zrun --help`."""

    module: str
    attribute: str
    help: str

    def load(self) -> click.Command:
        command: click.Command = getattr(import_module(f"zrun.cli.{self.module}"), self.attribute)
        return command


def _later(name: str, text: str) -> tuple[str, Entry]:
    return name, Entry("later", name, f"{text} (not yet)")


COMMANDS: Final[dict[str, Entry]] = dict(
    (
        ("launch", Entry("launch", "launch", "Run a job and follow it; continue one that was interrupted.")),
        ("status", Entry("status", "status", "How a job stands: state, reason, ranks, attempts, incidents.")),
        ("ls", Entry("ls", "ls", "All jobs.")),
        ("logs", Entry("logs", "logs", "Output of the ranks, filtered.")),
        ("stop", Entry("control", "stop", "Stop a job after saving it.")),
        ("resume", Entry("resume", "resume", "Go on with a job that is not live, and follow it.")),
        ("restart", Entry("control", "restart", "Begin a new attempt of a live job now.")),
        ("describe", Entry("describe", "describe", "Everything about a job, its settings included.")),
        ("events", Entry("events", "events", "What happened and what was decided, in order.")),
        _later("top", "Live view of all ranks."),
        ("wait", Entry("wait", "wait", "Wait for the end of a job; its state becomes the exit code.")),
        ("stacks", Entry("stacks", "stacks", "Stacks of all ranks now, grouped by equal stack.")),
        ("incidents", Entry("incidents", "incidents", "What broke, because of what, at what cost.")),
        ("ckpt", Entry("ckpt", "ckpt", "List and verify checkpoints, offline too.")),
        _later("batches", "Which samples were in which batch."),
        _later("plan", "What fits into memory and what it costs, before anyone pays."),
        _later("drill", "Break a job on purpose and prove that nothing was lost."),
        ("check", Entry("files", "check", "Check a job file without running it.")),
        ("init", Entry("files", "init", "Write a job file to begin with.")),
        ("schema", Entry("files", "schema", "The job file's JSON schema and every default.")),
        _later("render", "Job scripts for Slurm and Kubernetes."),
        _later("doctor", "What this machine lacks."),
        ("dashboard", Entry("serve", "dashboard", "The address of the page.")),
        ("coordinator", Entry("serve", "coordinator", "Run a coordinator.")),
        ("agent", Entry("serve", "agent", "Run an agent: join this node to a coordinator.")),
        (
            "token",
            Entry("token", "token", "Print the access token of a job or coordinator; make one if there is none."),
        ),
        ("completion", Entry("completion", "completion", "Shell completion for bash, zsh or fish.")),
    )
)

ALIASES: Final = {"queue": "ls", "ps": "ls", "list": "ls", "cancel": "stop"}
