"""The table of all commands: where each lives and what it does in one line; imports none of them."""

from dataclasses import dataclass, replace
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


def _later(text: str) -> Entry:
    return Entry("later", "", text)


GROUPS: Final[dict[str, dict[str, Entry]]] = {
    "Run a job": {
        "launch": Entry("launch", "launch", "Run a job and follow it; continue one that was interrupted."),
        "resume": Entry("resume", "resume", "Go on with a job that is not live, and follow it."),
        "restart": Entry("control", "restart", "Begin a new attempt of a live job now."),
        "stop": Entry("control", "stop", "Stop a job after saving it."),
        "wait": Entry("wait", "wait", "Wait for a job's end; its state becomes the exit code."),
    },
    "Look at a job": {
        "ls": Entry("ls", "ls", "All jobs."),
        "status": Entry("status", "status", "State and reason, ranks, attempts, incidents."),
        "logs": Entry("logs", "logs", "Output of the ranks, filtered."),
        "incidents": Entry("incidents", "incidents", "What broke, because of what, at what cost."),
        "stacks": Entry("stacks", "stacks", "Stacks of all ranks now, grouped by equal stack."),
        "events": Entry("events", "events", "What happened and what was decided, in order."),
        "describe": Entry("describe", "describe", "Everything about a job, its settings included."),
        "ckpt": Entry("ckpt", "ckpt", "List, verify, pin, prune and export checkpoints, offline."),
        "batches": Entry("batches", "batches", "Which samples were in which batch; one batch again."),
        "dashboard": Entry("serve", "dashboard", "The address of the page."),
    },
    "Job files": {
        "init": Entry("files", "init", "Write a job file to begin with."),
        "check": Entry("files", "check", "Check a job file without running it."),
        "plan": Entry("plan", "plan", "What fits into memory and what it costs, beforehand."),
        "drill": Entry("drill", "drill", "Break a job on purpose and prove that nothing was lost."),
        "schema": Entry("files", "schema", "The job file's JSON schema and every default."),
    },
    "Serve": {
        "coordinator": Entry("serve", "coordinator", "Run a coordinator for many jobs."),
        "agent": Entry("serve", "agent", "Join this node to a coordinator."),
        "token": Entry("token", "token", "The access token of a job or coordinator."),
        "completion": Entry("completion", "completion", "Shell completion for bash, zsh or fish."),
    },
    "Not yet in this version": {
        "top": _later("Live view of all ranks."),
        "render": _later("Job scripts for Slurm and Kubernetes."),
        "doctor": _later("What this machine lacks."),
    },
}

COMMANDS: Final[dict[str, Entry]] = {
    name: replace(entry, attribute=entry.attribute or name)
    for group in GROUPS.values()
    for name, entry in group.items()
}

ALIASES: Final = {"queue": "ls", "ps": "ls", "list": "ls", "cancel": "stop"}
