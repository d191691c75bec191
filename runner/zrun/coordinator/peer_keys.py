"""The key with which the agents of one attempt prove themselves to each other, made from the coordinator's token.

The same again after a restart of the coordinator and in no journal. Knows nothing about what agents say.
"""

import hashlib
import hmac

import msgspec

from zrun.wire.order import JobOrder


class PeerKeys:
    """`secret`: known to this coordinator alone, or to those who hold its token."""

    def __init__(self, secret: bytes) -> None:
        self._secret = hashlib.sha256(b"zrun peers\0" + secret).digest()

    def of(self, job: str, attempt: int) -> str:
        return hmac.new(self._secret, f"{job}/{attempt}".encode(), hashlib.sha256).hexdigest()

    def put_in(self, job: str, order: JobOrder) -> JobOrder:
        """The order as it is sent; only agents that have peers need a key."""
        if order.run is None or order.run.nnodes == 1:
            return order
        run = msgspec.structs.replace(order.run, key=self.of(job, order.run.attempt))
        return msgspec.structs.replace(order, run=run)
