PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
READY := .venv/.ready

.PHONY: setup demo test lint types rooms bench docs clean

setup: $(READY)

# torch first and alone: another package's looser range could otherwise pull a CUDA build.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/weft show nano-gpt
	$(BIN)/weft demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

rooms: $(READY)
	$(BIN)/lint-imports --no-cache

test: lint types rooms
	$(BIN)/python -m pytest -n 2 --cov=weft.parts --cov=weft.models --cov-report=term:skip-covered --cov-fail-under=95

bench: $(READY)
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/experts.py

docs: $(READY)
	$(BIN)/python docs/parts.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .coverage
