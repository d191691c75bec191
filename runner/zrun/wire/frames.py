"""Frames on the one WebSocket between agent and coordinator: msgpack, typed, one version number, no pickle."""

from typing import Final

import msgspec

from zrun.core.errors import ProtocolError
from zrun.wire.order import Down
from zrun.wire.report import Up

PROTOCOL: Final = 2
LARGEST_UP: Final = 4 << 20
"""Bytes; a larger frame from an agent is refused."""

_encoder = msgspec.msgpack.Encoder()
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
_down: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)


def encode(message: Up | Down) -> bytes:
    return _encoder.encode(message)


def decode_up(frame: bytes) -> Up:
    """Raises ProtocolError for anything an agent of this version does not send."""
    if len(frame) > LARGEST_UP:
        raise ProtocolError(f"a frame of {len(frame)} bytes; at most {LARGEST_UP} are read")
    try:
        return _up.decode(frame)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a frame of protocol {PROTOCOL}: {error}") from error


def decode_down(frame: bytes) -> Down:
    """Raises ProtocolError for anything a coordinator of this version does not send."""
    try:
        return _down.decode(frame)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a frame of protocol {PROTOCOL}: {error}") from error
