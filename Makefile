# make test: everything CI checks.  make quickstart: one comparison on the shipped trace.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# One stamp for each set of installed packages, so that an install happens once and again when pyproject.toml changes.
DEV := $(VENV)/.installed-dev
PLAIN := $(VENV)/.installed

.PHONY: test lint bench quickstart clean

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV)
	$(BIN)/python -m pytest tests/benchmarks -m benchmark -s

quickstart: $(if $(wildcard $(DEV)),$(DEV),$(PLAIN))
	$(BIN)/kvcast compare scenarios/mooncake_conversation.yaml

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $(DEV) $(PLAIN)

$(PLAIN): pyproject.toml $(shell find simulator calibration -type f -not -name "*.pyc") | $(BIN)/python
	$(BIN)/python -m pip install --quiet .
	touch $(PLAIN)

clean:
	rm -rf $(VENV) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
