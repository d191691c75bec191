"""The `run` line: what torchrun takes after its own options, split like a shell line though no shell runs.

Recognises lines written for another launcher and says what is left of them. Knows nothing about files.
"""

import re
import shlex
from typing import Any, Final

from zrun.spec.kinds import BAD, Kind, shape
from zrun.spec.nodes import Items, Node, Scalar
from zrun.spec.problem import Problems, Wrong, quoted, sound

EXAMPLE: Final = "a script or -m module, then its arguments, for example: train.py --lr 1e-4"
_LAUNCHERS: Final = frozenset({
    "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun", "composer", "colossalai", "uv",
    "poetry", "conda", "ray", "nohup", "env", "sudo", "exec", "time",
})  # fmt: skip
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "dash", "fish"})
_PYTHON: Final = re.compile(r"(?:.*/)?(?:python|pypy)[0-9.]*")
_MODULES: Final = frozenset({"torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher"})
_SHELL_WORDS: Final = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "2>", "&>"})


class RunLine(Kind):
    """A text that is split, or a list that is taken as it stands."""

    expects = EXAMPLE

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        try:
            return checked(_words(node))
        except Wrong as wrong:
            problems.add(node.span, f"{path}: {wrong.message}", expected=EXAMPLE, suggestion=wrong.suggestion)
            return BAD

    def show(self, value: Any) -> Any:
        line = shlex.join(value)
        return line if line.isprintable() and split(line) == value else list(value)

    def schema(self) -> dict[str, Any]:
        words = {"type": "array", "minItems": 1, "items": {"type": ["string", "number", "boolean"]}}
        return {"anyOf": [{"type": "string", "minLength": 1}, words]}


def _words(node: Node) -> list[str]:
    match node:
        case Items(items=[_, *_]):
            return [_word(item) for item in node.items]
        case Scalar(empty=False):
            words = split(node.text)
            _refuse_shell(node.text)
            return words
        case _:
            raise Wrong(f"{shape(node)} cannot be run")


def _word(item: Node) -> str:
    if not isinstance(item, Scalar):
        raise Wrong(f"{shape(item)} cannot be an argument")
    return item.text


def split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Wrong(f"a quote is not closed ({error})") from error
    if not words:
        raise Wrong("nothing to run")
    return words


def _refuse_shell(text: str) -> None:
    """Raises Wrong for an operator outside quotes; a word in quotes is an argument like any other."""
    try:
        raw = shlex.split(text, posix=False)
    except ValueError:
        return
    shell = next((word for word in raw if word in _SHELL_WORDS or (word.endswith(";") and word[0] not in "'\"")), None)
    if shell:
        raise Wrong(f"{quoted(shell)} is for a shell, and none runs here", "put it in quotes if the script wants it")


def checked(words: list[str]) -> list[str]:
    """The words if zrun can run them; raises Wrong with what to write instead."""
    for word in words:
        sound(word)
    first = words[0]
    name = first.rsplit("/", 1)[-1]
    if name in _LAUNCHERS:
        raise Wrong(f"run starts {quoted(first)}, but zrun starts the workers itself", _remedy(words))
    if _PYTHON.fullmatch(first):
        raise Wrong(f"run starts {quoted(first)}, but zrun starts python itself (`python:` says which)", _remedy(words))
    if name in _SHELLS or first.endswith(".sh"):
        hint = "name the python script itself; what prepares a node belongs under setup, variables under env"
        raise Wrong(f"run starts {quoted(first)}, but zrun runs no shell", hint)
    if first == "-m":
        if len(words) < 2 or words[1].startswith("-"):
            raise Wrong("-m without a module", "-m train.main --config configs/7b.yaml")
        if words[1] in _MODULES:
            raise Wrong(f"run starts {quoted(words[1])}, but zrun starts the workers itself", _remedy(words))
    elif first.startswith("-"):
        hint = "the number of workers is nproc_per_node; run begins with the script or -m module"
        raise Wrong(f"run begins with the option {quoted(first)}", hint)
    elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", first):
        raise Wrong(f"run begins with a variable ({quoted(first)})", f"env: {{{first.replace('=', ': ', 1)}}}")
    elif not first:
        raise Wrong("the script's name is empty")
    return words


def _remedy(words: list[str]) -> str:
    """What is left of another launcher's line: the script and its arguments."""
    for index, word in enumerate(words[1:], start=1):
        if word.endswith(".py"):
            return f"run: {shlex.join(words[index:])}"
        if word in {"-m", "--module"} and index + 1 < len(words) and words[index + 1] not in _MODULES:
            return f"run: {shlex.join(['-m', *words[index + 1 :]])}"
    return "write only the script and its arguments"
