"""A tensor's own memory as a byte view, without numpy; knows nothing about files or checkpoints."""

import ctypes
import sys
from typing import Final

import torch

from zrun.core.errors import CheckpointError

_NAMES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
DTYPES: Final[dict[str, torch.dtype]] = {
    name: getattr(torch, attribute) for name, attribute in _NAMES.items() if hasattr(torch, attribute)
}
"""dtype name in a safetensors header -> torch dtype, as far as this torch has it."""
_NAME_OF: Final = {dtype: name for name, dtype in DTYPES.items()}

_view = ctypes.pythonapi.PyMemoryView_FromMemory  # views of ctypes arrays are not of plain bytes
_view.restype = ctypes.py_object
_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITABLE: Final = 0x200

if sys.byteorder != "little":  # pragma: no cover - no such machine runs torch today
    raise ImportError("zrun writes tensors in little-endian order; this machine is big-endian")


def dtype_name(dtype: torch.dtype, what: str) -> str:
    """The header name of a dtype; CheckpointError naming `what` where the format has none."""
    try:
        return _NAME_OF[dtype]
    except KeyError:
        raise CheckpointError(f"{what} has dtype {dtype}, which the safetensors format cannot hold") from None


def dtype_of(name: str, what: str) -> torch.dtype:
    """The torch dtype of a header name; CheckpointError naming `what` where this torch lacks it."""
    try:
        return DTYPES[name]
    except KeyError:
        raise CheckpointError(f"{what} has dtype {name}, which torch {torch.__version__} does not have") from None


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its history; CheckpointError for one that has no plain block of bytes."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        raise CheckpointError(f"a {plain.layout} tensor of shape {tuple(plain.shape)} cannot be saved; make it dense")
    return plain


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits, dense and contiguous in host memory; the tensor itself where it already is so."""
    return dense(tensor).resolve_conj().resolve_neg().to("cpu").contiguous()


def view_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable and not copied; valid only while the tensor lives."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError("only a contiguous CPU tensor has one block of bytes")
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    view: memoryview = _view(tensor.data_ptr(), size, _WRITABLE)
    return view
