"""Runs the lessons and stores them as notebooks with outputs; `pages` turns stored ones into Markdown for the site.

python docs/build_lessons.py run --budget quick --jobs 2 --again --out build/lessons
python docs/build_lessons.py run --budget full                     # resumable; stored in docs/lessons/outputs
python docs/build_lessons.py pages --out DIR
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from weft.lessons.notebooks import is_stored, run_lesson, write_page
from weft.lessons.percent_format import lesson_files

LESSONS = Path(__file__).resolve().parent / "lessons"
STORED = LESSONS / "outputs"


def chosen(only: str) -> list[Path]:
    """The lessons whose numbers are named, such as `1,5,6`; all by default."""
    numbers = {int(word) for word in only.split(",") if word}
    return [path for path in lesson_files(LESSONS) if not numbers or int(path.name[:2]) in numbers]


def run_one(lesson: Path, options: argparse.Namespace) -> bool:
    """Run one lesson in a process of its own, unless its outputs are stored; whether it went well."""
    if not options.again and is_stored(lesson, options.budget, options.out):
        print(f"{lesson.stem}: stored already", flush=True)
        return True
    words = [sys.executable, __file__, "one", str(lesson), "--budget", options.budget, "--out", str(options.out)]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    print(done.stdout.strip() if done.returncode == 0 else f"{lesson.stem}: FAILED\n{done.stderr}", flush=True)
    return done.returncode == 0


def main() -> int:
    """The three commands: run, one, pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "one", "pages"))
    parser.add_argument("lesson", nargs="?", type=Path, help="the file of the lesson, for `one`")
    parser.add_argument("--budget", choices=("quick", "full"), default="quick")
    parser.add_argument("--only", default="", help="numbers of lessons, such as 1,5,6")
    parser.add_argument("--jobs", type=int, default=1, help="lessons that run at the same time")
    parser.add_argument("--again", action="store_true", help="also run lessons whose outputs are stored")
    parser.add_argument("--out", type=Path, default=STORED)
    options = parser.parse_args()
    if options.command == "one":
        seconds = run_lesson(options.lesson, options.budget, options.out)
        print(f"{options.lesson.stem}: {seconds:.1f} s")
        return 0
    if options.command == "pages":
        for lesson in chosen(options.only):
            notebook = STORED / f"{lesson.stem}.ipynb"
            if notebook.is_file():
                page = write_page(notebook, options.out)
                shutil.copy(notebook, options.out)
                print(f"wrote {page.name}")
        return 0
    with ThreadPoolExecutor(options.jobs) as pool:
        well = list(pool.map(lambda lesson: run_one(lesson, options), chosen(options.only)))
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
