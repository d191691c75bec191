"""What a training script imports: `from zrun.worker import Session, Loader`.

Both come when they are asked for, because they import torch: importing this package alone does not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zrun.data.loader import Loader
    from zrun.worker.session import Session

__all__ = ["Loader", "Session"]


def __getattr__(name: str) -> Any:
    if name == "Session":
        from zrun.worker.session import Session

        return Session
    if name == "Loader":
        from zrun.data.loader import Loader

        return Loader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
