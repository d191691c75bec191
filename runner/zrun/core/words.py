"""Text of others made fit to travel: it can be encoded, and it is of a length somebody reads.

Knows nothing about what the text says.
"""

from typing import Any, Final

BORDER: Final = 1000
"""Characters in which a border between words is looked for, so that no value is torn into a half that nobody hides."""


def encodable(value: Any) -> Any:
    """The same value; where a string inside has lone surrogates they are escaped, as no UTF-8 can hold them."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "backslashreplace").decode()
        return value
    if isinstance(value, dict):
        return {encodable(k): encodable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(v) for v in value]
    return value


def shortened(value: Any, longest: int) -> Any:
    """The same value; of a string inside that is longer, head and tail stay and what was cut is counted."""
    if isinstance(value, str):
        return value if len(value) <= longest else _cut(value, longest)
    if isinstance(value, dict):
        return {k: shortened(v, longest) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(v, longest) for v in value]
    return value


def _cut(text: str, longest: int) -> str:
    head, tail = text[: longest // 2], text[-(longest // 2) :]
    border = min(BORDER, longest // 4)
    spaces = [at for at, sign in enumerate(head[-border:]) if sign.isspace()]
    if spaces:
        head = head[: len(head) - len(head[-border:]) + spaces[-1]]
    at = next((at for at, sign in enumerate(tail[:border]) if sign.isspace()), -1)
    tail = tail[at + 1 :]
    return f"{head}\n[… {len(text) - len(head) - len(tail)} characters cut …]\n{tail}"
