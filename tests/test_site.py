"""The built site with the network cut: nothing is asked of another host, links lead somewhere, search works.

`make docs` builds it and then runs this.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browser import Browser, find_browser

SITE = Path(__file__).parent.parent / "build" / "site"
LOADED_PAGE = "document.readyState === 'complete'"
pytestmark = pytest.mark.docs
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?([^\"\s>]+)")
PLACES = re.compile(r"\bhref=\"?([^\"\s>]+)")


@pytest.fixture(scope="module")
def pages():
    """All pages by path, with their text."""
    found = {path: path.read_text(encoding="utf-8") for path in sorted(SITE.rglob("*.html"))}
    if not found:
        pytest.skip("there is no site in build/site: run make docs")
    return found


def test_nothing_is_loaded_from_elsewhere(pages):
    for page, text in pages.items():
        for address in LOADED.findall(text):
            assert not re.match(r"\w+:|//", address) or address.startswith("data:"), (page, address)
        assert "arithmatex" not in text, f"{page}: a formula was not drawn"
        assert "<mi>&</mi>" not in text, f"{page}: an alignment was not understood"
    for style in SITE.rglob("*.css"):
        assert not re.search(r"url\(\"?(https?:)?//|@import", style.read_text(encoding="utf-8")), style


def test_links_lead_to_pages_and_places(pages):
    places = {page: set(re.findall(r"\bid=\"?([^\"\s>]+)", text)) for page, text in pages.items()}
    for page, text in pages.items():
        if page.name == "404.html":
            continue
        for link in PLACES.findall(text):
            if re.match(r"\w+:|//", link):
                continue
            parts = urlsplit(link)
            goal = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            goal = goal / "index.html" if goal.is_dir() else goal
            assert goal.exists(), (page, link)
            if parts.fragment and goal in places and parts.fragment != "__codelineno":
                fragment = unquote(parts.fragment)
                assert fragment in places[goal] or fragment.startswith("__"), (page, link)


@pytest.fixture(scope="module")
def browser(tmp_path_factory, pages):
    path = find_browser()
    if path is None:
        pytest.skip("there is no Chromium")
    found = Browser(path, tmp_path_factory.mktemp("browser"))
    found.cut_network()
    yield found
    found.close()


@pytest.mark.parametrize(
    "name", ["index.html", "GLOSSARY.html", "howto/text.html", "options.html", "reference/weft.html"]
)
def test_a_page_opens_from_disk_without_a_network(browser, name):
    browser.open(SITE / name, LOADED_PAGE)
    assert not browser.errors, browser.errors
    assert browser.run("document.querySelector('.md-content h1') !== null")
    asked = browser.run("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert all(address.startswith("file:") for address in asked), asked
    broken = browser.run("[...document.images].filter(one => !one.complete || !one.naturalWidth).map(one => one.src)")
    assert broken == []


def test_formulas_are_drawn_by_the_browser(browser):
    browser.open(SITE / "GLOSSARY.html", LOADED_PAGE)
    wide = browser.run(
        "[...document.querySelectorAll('math')].filter(one => one.getBoundingClientRect().width > 3).length"
    )
    assert wide > 30


def test_search_finds_without_a_network(browser):
    browser.open(SITE / "index.html", LOADED_PAGE)
    found = browser.run(
        """new Promise(done => {
            const field = document.querySelector('[data-md-component=search-query]');
            field.focus();
            field.value = 'alignment';
            for (const kind of ['focus', 'keyup', 'input']) field.dispatchEvent(new Event(kind, {bubbles: true}));
            const look = (left) => {
                const links = [...document.querySelectorAll('.md-search-result__link')];
                if (links.length || !left) done(links.map(link => link.getAttribute('href')));
                else setTimeout(() => look(left - 1), 200);
            };
            look(100);
        })"""
    )
    assert len(found) > 2
    assert not browser.errors, browser.errors
