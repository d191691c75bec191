"""Our writer and the safetensors library agree, and no flipped bit passes."""

import hashlib
import json
import struct
from pathlib import Path

import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from zrun.core.errors import CheckpointError
from zrun.core.local_disk import LocalFile
from zrun.state.safetensors_file import read, read_header, read_into, write
from zrun.state.tensor_bytes import DTYPES, view_of

FLOAT8 = [name for name in DTYPES if name.startswith("F8")]


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(view_of(tensor.detach().contiguous()))


def random_tensor(dtype: torch.dtype, shape: list[int], seed: int) -> torch.Tensor:
    """Any bits at all, NaNs with payloads too."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    if dtype is torch.bool:
        raw &= 1
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


tensors = st.dictionaries(
    st.text(min_size=1, max_size=12).filter(lambda s: s != "__metadata__" and s.isprintable()),
    st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), max_size=4), st.integers(0, 2**31)),
    max_size=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(described=tensors)
def test_what_is_written_reads_back_bit_for_bit_by_us_and_by_the_library(
    tmp_path: Path, described: dict[str, tuple[str, list[int], int]]
) -> None:
    path = tmp_path / "a.safetensors"
    path.unlink(missing_ok=True)
    held = {name: random_tensor(DTYPES[d], shape, seed) for name, (d, shape, seed) in described.items()}
    written = write(path, held, {"format": "pt"})
    raw = path.read_bytes()
    assert written.bytes == len(raw)
    head = 8 + int.from_bytes(raw[:8], "little")
    assert written.digest == "sha256:" + hashlib.sha256(raw[:head]).hexdigest()
    stored, metadata = read_header(path)
    assert metadata == {"format": "pt"}
    ours = read(path)
    theirs = load_file(path) if not any(d == "F8_E8M0" for d, _, _ in described.values()) else ours
    assert ours.keys() == held.keys() == theirs.keys()
    for name, tensor in held.items():
        assert bits(ours[name]) == bits(tensor) == bits(theirs[name])
        assert ours[name].shape == tensor.shape
        assert ours[name].dtype == tensor.dtype == theirs[name].dtype
        span = written.spans[name]
        assert (stored[name].start, stored[name].end) == (span.start, span.end)
        assert span.digest == "sha256:" + hashlib.sha256(raw[span.start : span.end]).hexdigest()
        assert span.start % tensor.element_size() == 0


def test_a_file_of_the_library_reads_with_ours(tmp_path: Path) -> None:
    held = {"a": torch.randn(3, 4), "b": torch.arange(5), "s": torch.tensor(2.5, dtype=torch.bfloat16)}
    save_file(held, tmp_path / "x")
    ours = read(tmp_path / "x")
    assert all(torch.equal(ours[name], held[name]) for name in held)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24).reshape(4, 6).t(),
        torch.arange(24)[::3],
        torch.zeros(()).expand(3, 2),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(5, requires_grad=True),
        torch.nn.Parameter(torch.randn(2)),
    ],
    ids=["transposed", "strided", "expanded", "channels-last", "with-grad", "parameter"],
)
def test_a_tensor_of_any_memory_layout_keeps_its_values(tmp_path: Path, tensor: torch.Tensor) -> None:
    write(tmp_path / "x", {"t": tensor})
    assert torch.equal(load_file(tmp_path / "x")["t"], tensor.detach())


def test_tensors_larger_than_a_block_are_written_whole(tmp_path: Path) -> None:
    big = torch.randint(0, 256, (9_500_001,), dtype=torch.uint8)
    written = write(tmp_path / "x", {"big": big, "small": torch.ones(3)})
    target = torch.empty_like(big)
    span = written.spans["big"]
    with (tmp_path / "x").open("rb") as file:
        read_into(LocalFile(file.fileno()), span.start, span.end, target, span.digest, "big")
    assert torch.equal(target, big)


def test_a_flipped_bit_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x"
    span = write(path, {"t": torch.randn(100)}).spans["t"]
    raw = bytearray(path.read_bytes())
    raw[span.start + 33] ^= 1
    path.write_bytes(raw)
    with path.open("rb") as file, pytest.raises(CheckpointError, match="t: digest mismatch"):
        read_into(LocalFile(file.fileno()), span.start, span.end, torch.empty(100), span.digest, "t")


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "x", {"t": torch.ones(1)})
    with pytest.raises(FileExistsError):
        write(tmp_path / "x", {"t": torch.zeros(1)})


def test_what_the_format_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"weird has dtype torch\.complex128"):
        write(tmp_path / "x", {"weird": torch.zeros(2, dtype=torch.complex128)})
    with pytest.raises(CheckpointError, match="make it dense"):
        write(tmp_path / "y", {"sparse": torch.eye(3).to_sparse()})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=200), whole_header=st.booleans())
def test_rubbish_is_refused_and_never_crashes(tmp_path: Path, raw: bytes, whole_header: bool) -> None:
    path = tmp_path / "rubbish"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw if whole_header else raw)
    try:
        stored, _ = read_header(path)
    except CheckpointError:
        return
    assert stored == {}


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 5]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]},
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, entry: dict[str, object]) -> None:
    text = json.dumps({"t": entry}).encode()
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(CheckpointError):
        read_header(path)
    with pytest.raises(safetensors.SafetensorError):
        load_file(path)


def test_digests_that_come_after_the_last_byte_is_written_are_waited_for(tmp_path: Path) -> None:
    held = {f"t{n:02d}": torch.full((1 << 20,), float(n)) for n in range(24)}
    written = write(tmp_path / "x", held)
    assert [written.spans[name].digest for name in held] == [
        "sha256:" + hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for tensor in held.values()
    ]
