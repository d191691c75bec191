"""The page's files as they are served: complete, without anything inline or from elsewhere."""

import re
from importlib.resources import files

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from zrun.dashboard.pages import OPEN_PATHS, dashboard_router

STATIC = {entry.name: entry.read_text() for entry in (files("zrun.dashboard") / "static").iterdir()}
SCRIPTS = sorted(name for name in STATIC if name.endswith(".js"))
PAGES = sorted(name for name in STATIC if name.endswith(".html"))


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    app.include_router(dashboard_router())
    return TestClient(app)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/login", "text/html"), ("/assets/page.css", "text/css"),
     ("/assets/main.js", "text/javascript")],
)  # fmt: skip
def test_each_file_has_its_type(client: TestClient, path: str, kind: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    assert client.head(path).status_code == 200


@pytest.mark.parametrize("path", ["/assets/", "/assets/nothing.js", "/assets/../pages.py", "/assets/%2e%2e/pages.py"])
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_what_is_open_is_what_the_login_page_needs() -> None:
    asked = set(re.findall(r'(?:src|href)="(/[^"]+)"', STATIC["login.html"]))
    assert asked == OPEN_PATHS - {"/login"}
    assert "import " not in STATIC["login.js"]


@pytest.mark.parametrize("name", PAGES)
def test_pages_hold_nothing_that_the_policy_forbids(name: str) -> None:
    text = STATIC[name]
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", text) == []


@pytest.mark.parametrize("name", sorted(STATIC))
def test_nothing_comes_from_elsewhere(name: str) -> None:
    found = re.findall(r"(?:https?:)?//[a-z][\w.-]+\.[a-z]{2,}[^\s\"')]*", STATIC[name])
    assert [url for url in found if "www.w3.org" not in url] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_import_is_there(name: str) -> None:
    for wanted in re.findall(r'from "\./([^"]+)"', STATIC[name]):
        assert wanted in STATIC


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_goes_in_as_text_only(name: str) -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", STATIC[name])


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_stay_short(name: str) -> None:
    assert STATIC[name].count("\n") <= 160
