"""What the site adds to the pages in docs/: pages of files outside of it, made pages, lessons, links, formulas."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from formulas import draw_formulas
from mkdocs.structure.files import File, Files, InclusionLevel
from reference import PACKAGE, module_name, page_of, reference_pages
from tables import commands_page, options_page, presets_page

INCLUDED = InclusionLevel.INCLUDED
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Files at the top of the repository and their pages.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contribute/index.md",
    "CODE_OF_CONDUCT.md": "contribute/conduct.md",
    "CITATION.cff": "CITATION.cff",
    "docs/lessons/README.md": "contribute/lessons.md",
}
# Entries of the navigation that are left out where the file is not there.
OPTIONAL = {"SERVING.md": "docs/SERVING.md", "contribute/lessons.md": "docs/lessons/README.md"}
LESSONS = ROOT / "build" / "lesson_pages"
LINK = re.compile(r"(\]\(|\bsrc=\")(?!\w+:|#|/)([^)\s#\"]*)(#[^)\s]*)?([)\"])")
FENCED = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.S | re.M)
_references = list(reference_pages())
_lessons: list[Path] = []


def on_config(config: Any) -> Any:
    """Lessons and reference pages join the navigation; what is not there leaves it."""
    _lessons[:] = write_lessons()
    config.nav = [entry for entry in map(_filled, config.nav) if entry is not None]
    return config


def _filled(entry: Any) -> Any:
    if isinstance(entry, str):
        return entry
    [(title, content)] = entry.items()
    if title == "Lessons":
        content = ["lessons/index.md", *(f"lessons/{path.name}" for path in _lessons)] if _lessons else []
    elif title == "Python":
        content = [{name: address} for name, address, _ in _references]
    elif isinstance(content, list):
        content = [each for each in map(_filled, content) if each is not None]
    elif content in OPTIONAL and not _there(OPTIONAL[content]):
        return None
    return {title: content} if content else None


def write_lessons() -> list[Path]:
    """The stored outputs of the lessons as pages with their pictures and notebooks; what is not stored has no page."""
    builder = DOCS / "build_lessons.py"
    if not builder.is_file():
        return []
    shutil.rmtree(LESSONS, ignore_errors=True)
    LESSONS.mkdir(parents=True)
    source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    words = [sys.executable, str(builder), "pages", "--out", str(LESSONS)]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": source}, stdout=subprocess.DEVNULL)
    return sorted(LESSONS.glob("*.md"))


def lesson_list(pages: list[Path]) -> str:
    """The page that lists the lessons, each with the topic of the lectures that it is about."""
    lines = ["# Lessons", "", LESSONS_SAID, ""]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        title = re.search(r"(?m)^# (.*)$", text)
        topic = re.search(r"\*\*Lecture topic:\*\*\s*(.*)", text)
        told = f": {topic[1]}" if topic else ""
        book = f" ([notebook]({page.stem}.ipynb))" if page.with_suffix(".ipynb").is_file() else ""
        lines.append(f"- [{title[1] if title else page.stem}]({page.name}){told}{book}")
    return "\n".join(lines) + "\n"


LESSONS_SAID = """Each states an equation, shows the lines of Weft that *are* that equation, runs them, lets you change
something, and asks three questions whose answers are checked by running code. They open as notebooks, and run as
scripts: `docs/lessons/`."""


def on_files(files: Files, config: Any) -> Files:
    """Pages that are not files of docs/."""
    made = {address: (ROOT / name).read_text(encoding="utf-8") for name, address in OUTSIDE.items() if _there(name)}
    made |= {address: text for _, address, text in _references}
    made |= {"options.md": options_page(), "commands.md": commands_page(), "presets.md": presets_page()}
    if _lessons:
        made["lessons/index.md"] = lesson_list(_lessons)
        for path in (path for path in LESSONS.rglob("*") if path.is_file()):
            address = f"lessons/{path.relative_to(LESSONS).as_posix()}"
            files.append(File.generated(config, address, abs_src_path=str(path), inclusion=INCLUDED))
    for address, text in made.items():
        files.append(File.generated(config, address, content=text, inclusion=INCLUDED))
    return files


def _there(name: str) -> bool:
    return (ROOT / name).is_file()


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Links as they work in the repository become links between pages of the site."""
    address = page.file.src_uri
    place = next((name for name, made in OUTSIDE.items() if made == address), f"docs/{address}")
    parts = FENCED.split(text)
    return "".join(part if part.startswith("`") else _linked(part, place, address) for part in parts)


def _linked(text: str, place: str, address: str) -> str:
    def rewrite(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), found[2]))
        anchor = found[3] or ""
        if target in OUTSIDE:
            goal = OUTSIDE[target]
        elif target.startswith("docs/"):
            goal = target.removeprefix("docs/")
        elif target.startswith("src/weft/") and target.endswith(".py"):
            path = ROOT / target
            goal = page_of(path if path.parent != PACKAGE else PACKAGE / "__init__.py")
            anchor = anchor or ("" if path.parent == PACKAGE else f"#{module_name(path)}")
        else:
            return found[0]
        return f"{found[1]}{posixpath.relpath(goal, posixpath.dirname(address) or '.')}{anchor}{found[4]}"

    return LINK.sub(rewrite, text)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML."""
    return draw_formulas(html)
