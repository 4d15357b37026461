"""The interactive page: self-contained, exact, safe with any text, and alive in a real browser."""

from __future__ import annotations

import json
import re
from functools import cache

import numpy as np
import pytest

from browser import Browser, find_browser
from panels import TOKENS, attention, every_panel, shares
from weft.figures.panels.attention import AttentionPanel
from weft.figures.panels.maps import DenseMaps, TopWeightMaps, collect_maps
from weft.figures.panels.panel import Axis
from weft.figures.picture import Picture
from weft.figures.web.array_encoding import decode_array
from weft.figures.web.interactive import POLICY, SCRIPTS

PANELS = every_panel()
NASTY = (
    "</script><script>window.hurt=1</script>",
    '"><img src=x onerror="window.hurt=1">',
    "שלום עולם",
    "🙂👩‍🚀",
    "日本語",
)


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_no_outside_reference():
    text = Picture("All", tuple(PANELS.values()), "words", ("something",)).html()
    assert not re.search(r"https?:|//\w+\.|@import|url\(|\bsrc\s*=|\bhref\s*=|import\s*\(|fetch\(|XMLHttp", text)
    assert "default-src 'none'" in POLICY and POLICY in text
    assert text.count("<script") == 2 and text.count("</script>") == 2


def test_every_script_is_in_the_page_once():
    from importlib.resources import files

    folder = files("weft.figures.web") / "browser"
    assert sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".js")) == sorted(SCRIPTS)


def test_values_in_the_page_are_those_given():
    found = {panel["title"]: panel for panel in data_of(Picture("All", tuple(PANELS.values())).html())["panels"]}
    np.testing.assert_array_equal(decode_array(found["Overlay"]["maps"]), PANELS["overlay"].maps)
    np.testing.assert_array_equal(decode_array(found["Overlay"]["pixels"]), PANELS["overlay"].pixels)
    np.testing.assert_array_equal(decode_array(found["Pair"]["query"]), PANELS["pair"].query)
    np.testing.assert_array_equal(decode_array(found["Forecast"]["attention"]), PANELS["forecast"].attention)
    np.testing.assert_array_equal(decode_array(found["Steps"]["steps"][1]["values"]), PANELS["steps"].steps[1].values)
    np.testing.assert_array_equal(decode_array(found["Motion"]["joints"]), PANELS["motion"].upright())
    whole = data_of(Picture("One", (attention(),)).html())["panels"][0]
    np.testing.assert_array_equal(decode_array(whole["maps"]["whole"]), attention().maps.values)
    assert whole["rows"] == list(TOKENS) and whole["focus"] == 5
    assert whole["axes"][1] == {"name": "head", "options": ["mean", "0", "1", "2"], "chosen": 2, "missing": ""}


@pytest.mark.parametrize("text", NASTY)
def test_any_text_comes_back_as_it_was(text):
    page = Picture(text, (attention((text, *TOKENS)),), text, (text,)).html()
    found = data_of(page)
    assert found["title"] == found["words"] == found["left_out"][0] == text and found["panels"][0]["rows"][0] == text
    assert page.count("<script") == 2 and "<img" not in page


@cache
def long_panel(tokens: int, layers: int = 2, heads: int = 2) -> AttentionPanel:
    """Causal attention to a few places, a block of rows at a time, as a watcher gives it."""
    names = tuple(f"w{number}" for number in range(tokens))

    def rows(layer: int, first: int, last: int) -> np.ndarray:
        block = np.zeros((heads, last - first, tokens), np.float32)
        own = np.arange(first, last)
        for head in range(heads):
            back = np.maximum(0, own - 1 - (17 * head + 131 * layer))
            block[head, own - first, back] += 0.75
            block[head, own - first, own // 2] += 0.25
        return block

    options = ("mean", *map(str, range(heads)))
    maps = collect_maps(layers, options, (tokens, tokens), rows)
    return AttentionPanel(
        "Long", names, names, Axis("layer", tuple(map(str, range(layers)))), Axis("head", options), maps
    )


def test_a_long_text_fits_into_one_page():
    panel = long_panel(4096)
    assert isinstance(panel.maps, TopWeightMaps) and panel.maps.kept == pytest.approx(1.0)
    text = Picture("Long", (panel,)).html()
    assert len(text) < 30_000_000
    weights = decode_array(data_of(text)["panels"][0]["maps"]["weights"])
    assert weights.shape[:3] == (2, 3, 4096) and float(weights[1, 1, 4000].max()) == 0.75


# --- in the browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = find_browser()
    if path is None:
        pytest.skip("there is no Chromium: make test installs it where it may, else set WEFT_BROWSER to one")
    found = Browser(path, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def canvases(browser: Browser) -> list[str]:
    return browser.run("[...document.querySelectorAll('canvas')].map(c => c.toDataURL())")


def choose(browser: Browser, name: str, option: int) -> None:
    browser.run(
        f"(() => {{ const s = document.querySelector('select[aria-label=\"{name}\"]'); s.value = '{option}';"
        " s.dispatchEvent(new Event('change')); })()"
    )


@pytest.mark.parametrize("name", PANELS)
def test_each_kind_is_drawn_without_errors(browser, tmp_path, name):
    browser.open(Picture(name, (PANELS[name],)).write(tmp_path / "x.html"))
    assert browser.errors == []
    assert browser.run("document.querySelectorAll('section').length") == 1
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    blank = browser.run(
        "[...document.querySelectorAll('canvas')].filter(c => c.width > 1 && !c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data.some(x => x)).length"
    )
    assert blank == 0


def test_layer_and_head_change_what_is_drawn(browser, tmp_path):
    browser.open(Picture("x", (attention(),)).write(tmp_path / "x.html"))
    first = canvases(browser)
    choose(browser, "head", 3)
    second = canvases(browser)
    choose(browser, "layer", 0)
    third = canvases(browser)
    assert len(first) == 3 and all(a != b for a, b in zip(first, second, strict=True))
    assert all(a != b for a, b in zip(second, third, strict=True))
    choose(browser, "layer", 1)
    choose(browser, "head", 2)
    assert canvases(browser) == first and browser.errors == []


def test_pointing_at_a_cell_tells_its_number(browser, tmp_path):
    panel = AttentionPanel(
        "x",
        tuple("abcdefg"),
        tuple("abcdefg"),
        Axis("layer", ("0",)),
        Axis("head", ("0",)),
        DenseMaps(shares(1, 1, 7, 7)),
    )
    browser.open(Picture("x", (panel,)).write(tmp_path / "x.html"))
    box = browser.run(
        "(() => { const b = document.querySelectorAll('.scroll canvas')[1].getBoundingClientRect();"
        " return [b.x, b.y, b.width, b.height]; })()"
    )
    side = 26  # pixels of a cell in so small a map
    row, column = 4, 2
    browser.point(box[0] + box[2] - (7 - column - 0.5) * side, box[1] + box[3] - (7 - row - 0.5) * side)
    told = browser.run("document.getElementById('tip').textContent")
    value = float(panel.maps.values[0, 0, row, column])
    assert told.startswith("e (4) looks at c (2): ") and float(told.split(": ")[1]) == pytest.approx(value, rel=1e-3)


def test_pointing_at_a_word_colors_what_it_looks_at(browser, tmp_path):
    panel = attention()
    browser.open(Picture("x", (panel,)).write(tmp_path / "x.html"))
    colors = "[...document.querySelectorAll('.token')].map(t => t.style.background)"
    before = browser.run(colors)
    place = browser.run(
        "(() => { const b = document.querySelectorAll('.token')[1].getBoundingClientRect();"
        " return [b.x + 4, b.y + 6]; })()"
    )
    browser.point(*place)
    after = browser.run(colors)
    assert before != after
    row = panel.maps.values[1, 2, 1]
    darkest = browser.run(
        "(() => { const sums = [...document.querySelectorAll('.token')].map(t => (t.style.background.match(/\\d+/g)"
        " || [999]).map(Number).slice(0, 3).reduce((a, b) => a + b)); return sums.indexOf(Math.min(...sums)); })()"
    )
    assert darkest == int(row.argmax())


def test_nasty_text_stays_text(browser, tmp_path):
    browser.open(Picture(NASTY[0], (attention((*NASTY, *TOKENS)),), NASTY[1], (NASTY[0],)).write(tmp_path / "x.html"))
    assert browser.errors == [] and browser.run("window.hurt") is None
    assert browser.run("document.querySelector('h1').textContent") == NASTY[0]
    assert browser.run("[...document.querySelectorAll('.token')].map(t => t.textContent)")[: len(NASTY)] == list(NASTY)


def test_dark_and_light(browser, tmp_path):
    browser.dark(True)
    browser.open(Picture("x", (attention(),)).write(tmp_path / "x.html"))
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, drawn = browser.run(ground), canvases(browser)
    browser.run("document.getElementById('theme').click()")
    assert browser.run(ground) == "rgb(255, 255, 255)" != dark and canvases(browser) != drawn
    browser.dark(False)
    assert browser.errors == []


def test_a_long_text_opens_and_scrolls(browser, tmp_path):
    browser.open(Picture("Long", (long_panel(4096),)).write(tmp_path / "long.html"))
    assert browser.errors == []
    assert browser.run("document.querySelectorAll('.token').length") == 4096
    largest = browser.run("Math.max(...[...document.querySelectorAll('canvas')].map(c => c.width * c.height))")
    assert largest < 4_000_000  # what is drawn is what is seen, not 4,096 x 4,096
    before = canvases(browser)
    browser.run(
        "document.querySelectorAll('.scroll')[0].scrollTop = 40000;"
        "document.querySelectorAll('.scroll')[1].scrollTop = 9000"
    )
    browser.run("new Promise(done => setTimeout(done, 120))")
    after = canvases(browser)
    assert before[0] == after[0] and before[1] != after[1] and before[2] != after[2]
    row = browser.run("[...weft.at(weft.page.panels[0].maps.places, 1, 2, 4000)].includes(2000)")
    assert row is True


def test_a_skeleton_plays(browser, tmp_path):
    browser.open(Picture("x", (PANELS["motion"],)).write(tmp_path / "x.html"))
    before = canvases(browser)
    browser.run(
        "(() => { const s = document.querySelector('input[type=range]'); s.value = 7;"
        " s.dispatchEvent(new Event('input')); })()"
    )
    assert canvases(browser)[0] != before[0]
    assert "step 7 of 11" in browser.run("document.body.textContent")
