"""The built site: its links, its reference, what it fetches, and how far answers are away."""

import importlib
import pkgutil
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from browser import Browser, start_browser

import trustsets

pytestmark = pytest.mark.slow

# Rooms without public names for users: a program, a search, plumbing, a script.
PRIVATE = {"cli", "estimator", "neighbours", "probabilities", "storage", "verify"}
# Where a new reader finds the answer to each question.
QUESTIONS = {
    "how many samples?": "start/how_many_samples.html",
    "which score?": "start/which_method.html#which-score",
    "why is my set full?": "start/questions.html#why-is-my-set-full",
    "how do I save?": "start/questions.html#how-do-i-save-a-predictor",
    "groups?": "howto/groups.html",
    "drift?": "howto/monitoring.html",
    "images?": "howto/pytorch_image_model.html",
    "cite?": "start/questions.html#how-do-i-cite-it",
    "migrate from MAPIE?": "explanation/comparison.html",
    "guarantee?": "guarantees.html",
    "when not to use it?": "limitations.html",
    "what is conformal prediction?": "start/conformal_prediction.html",
    "what is trust?": "explanation/trust_score.html",
    "how to split?": "start/splitting.html",
    "regression?": "howto/other_tasks.html",
    "which files?": "reference/file_formats.html",
}


class Page(HTMLParser):
    """Links, identifiers and fetched addresses of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.names |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") != "canonical":
            self.fetched.append(values.get("href", ""))
        if "src" in values:
            self.fetched.append(values["src"])


@cache
def page(path: Path) -> Page:
    return Page(path)


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    broken, seen = [], 0
    for path in pages(site):
        if path.name == "404.html":
            continue
        for link in page(path).links + page(path).fetched:
            address, anchor = urldefrag(link)
            if urlparse(link).scheme:
                continue
            seen += 1
            goal = (path.parent / unquote(address)).resolve() if address else path
            wrong = not goal.exists() or (
                anchor and goal.suffix == ".html" and unquote(anchor) not in page(goal).names
            )
            if wrong and anchor != "__codelineno":
                broken.append(f"{path.relative_to(site)}: {link}")
    assert seen > 1000
    assert not broken, broken[:20]


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    fetched = {address for path in pages(site) for address in page(path).fetched}
    assert not [address for address in fetched if address.startswith(("http:", "https:", "//"))]
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"url\(['\"]?https?:", styles)


def test_every_public_name_is_on_a_reference_page(site: Path) -> None:
    names = {name for path in (site / "reference").glob("*.html") for name in page(path).names}
    shown = {name.rsplit(".", 1)[-1] for name in names}
    rooms = {room.name for room in pkgutil.iter_modules(trustsets.__path__)}
    public = [room for room in rooms - PRIVATE if not room.startswith("_")]
    # What fitting returns has no constructor for users.
    wanted = {
        name
        for home in ("trustsets", *(f"trustsets.{room}" for room in public))
        for name in importlib.import_module(home).__all__
        if name != "__version__" and not name.startswith("Fitted")
    }
    assert len(wanted) > 100 and not sorted(wanted - shown)


def test_answers_are_two_clicks_away(site: Path) -> None:
    home = (site / "index.html").resolve()
    clicks = {home: 0}
    reached: dict[str, int] = {}
    waiting = deque([home])
    while waiting:
        here = waiting.popleft()
        if clicks[here] == 2:
            continue
        for link in page(here).links:
            address, anchor = urldefrag(link)
            goal = (here.parent / unquote(address)).resolve() if address else here
            if urlparse(link).scheme or goal.suffix != ".html" or not goal.exists():
                continue
            name = str(goal.relative_to(site.resolve())) + (f"#{anchor}" if anchor else "")
            reached.setdefault(name, clicks[here] + 1)
            if goal not in clicks:
                clicks[goal] = clicks[here] + 1
                waiting.append(goal)
    far = {question for question, goal in QUESTIONS.items() if reached.get(goal, 99) > 2}
    assert not far


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Browser]:
    """A browser without the pages of other tests, beside which the search stayed silent."""
    with closing(start_browser(tmp_path)) as browser:
        yield browser


def test_search_works_from_disk(site: Path, chromium: Browser) -> None:
    chromium.resize(1300, 900)
    chromium.open(site / "start" / "install.html")
    links, start = "", time.monotonic()
    while not links and time.monotonic() < start + 60:
        # Again: on a busy machine the first letters come before anybody listens.
        query = "document.querySelector('[data-md-component=search-query]')"
        chromium.evaluate(f"{query}.value = '', {query}.focus()")
        chromium.type("noise floor")
        time.sleep(1.0)
        links = chromium.evaluate(
            "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href).join()"
        )
    assert "noise_floor.html" in links
    assert chromium.complaints() == []
    assert not [url for url in chromium.requests() if not url.startswith(("file:", "data:"))]
