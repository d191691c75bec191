"""Secret values are found in the forms in which programs print them."""

import base64
import json
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from zrun.core.redact import MASK, Redactor

SECRET = "p+ss/w rd=9é"


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        json.dumps({"k": SECRET}),
        json.dumps({"k": SECRET}, ensure_ascii=False),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower(),
        quote_plus(SECRET),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        *(base64.b64encode(f"{user}:{SECRET}@".encode()).decode() for user in ("a", "ab", "abc")),
    ],
)
def test_a_value_is_hidden_in_every_form_it_is_printed_in(text: str) -> None:
    clean = Redactor([SECRET]).text(f"before {text} after")
    assert MASK in clean
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    assert "w rd" not in clean
    assert base64.b64encode(SECRET.encode()).decode()[4:-4] not in clean


def test_short_values_are_left_alone_and_values_add_up() -> None:
    redactor = Redactor(["abc"])
    assert not redactor.active
    assert redactor.also(["hunter22"]).also([]).text("abc hunter22") == f"abc {MASK}"


def test_each_line_of_a_key_file_is_hidden() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\n-----END KEY-----\n"
    assert Redactor([key]).text("read MIIEvQIBADANBgkq") == f"read {MASK}"


def test_a_text_that_was_cut_ends_in_no_beginning_of_a_value() -> None:
    assert Redactor(["hunter22"]).cut("password hunte") == f"password {MASK}"
    assert Redactor(["hunter22"]).cut("password hun") == "password hun"


def test_a_file_that_is_over_is_rewritten_for_its_owner_alone(tmp_path: Path) -> None:
    log = tmp_path / "torchrun.log"
    Redactor(["hunter22"]).file(log)
    log.write_text("x hunter22\n")
    Redactor(["hunter22"]).file(log)
    assert log.read_text() == f"x {MASK}\n"


def test_a_value_that_is_no_utf_8_is_hidden_as_logs_show_it_and_one_learnt_later_too() -> None:
    import os

    hidden = Redactor([os.fsdecode(b"pass\xffword")])
    assert hidden.text("key pass\\xffword, pass\ufffdword, pass%FFword") == "key [secret], [secret], [secret]"
    hidden.learn(["second-one"])
    assert hidden.text("second-one") == "[secret]"
