"""Where checkpoints may lie, as a person writes it."""

from pathlib import Path

import pytest

from zrun.core.place import ObjectPath, is_url, place_of, within, wrong_url


def test_a_url_is_a_prefix_and_anything_else_a_path() -> None:
    assert place_of("s3://bucket//runs/a/") == ObjectPath("s3", "bucket/runs/a")
    assert place_of("checkpoints", Path("/runs/a")) == Path("/runs/a/checkpoints")
    assert place_of("/shared/a", Path("/runs/a")) == Path("/shared/a")
    assert place_of("file:///shared/with%20space") == Path("/shared/with space")
    assert [is_url(text) for text in ("gs://b", "file:///x", "a/b", "C://x")] == [True, False, False, False]


def test_a_prefix_has_a_name_a_parent_and_a_text() -> None:
    place = place_of("s3://bucket/runs") / "step-000005"
    assert (str(place), place.name, str(place.parent)) == (
        "s3://bucket/runs/step-000005",
        "step-000005",
        "s3://bucket/runs",
    )
    assert within(place, place_of("s3://bucket")) == "runs/step-000005"
    with pytest.raises(ValueError, match="is not in"):
        within(place, place_of("s3://bucket/run"))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("memory://x", "processes share nothing"), ("https://host/x", "nothing can be written"), ("s3://", "no bucket"),
        ("s3:///x", "no bucket"), ("s3://key:secret@bucket/x", "no place for credentials"), ("s3://b/*", "wildcards"),
        ("s3://b/../x", "`..`"), ("file://host/x", "three slashes"),
    ],
)  # fmt: skip
def test_what_cannot_hold_checkpoints_is_refused_with_the_reason(text: str, word: str) -> None:
    assert word in wrong_url(text)
    assert "secret@" not in wrong_url(text)
