# The two commands of a newcomer: `make demo` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
# No bytecode ahead, which halves the time: a first start compiles what it imports.
PIP := $(BIN)/python -m pip install --progress-bar on --no-compile -c constraints.txt
# What was compiled is kept, whatever the environment says: a process that compiles torch and the
# rest anew starts 3 s later, and the tests start hundreds.
export PYTHONDONTWRITEBYTECODE :=
# torch for Linux comes with some 3 GB of CUDA. Where there is no NVIDIA GPU, name the index of PyTorch's
# builds for CPUs, which pytorch.org's "Get Started" tells: make demo TORCH_INDEX=URL
TORCH_INDEX ?=

# Tests that compute for long, and not what serves a call on this machine: how weights are made, the
# path of GPUs by the references of its kernels, the library of other processors. `.ci/beside` runs them.
APART := tests/engine/recipes tests/audio/recipes tests/engine/kernels tests/benchmarks/engine \
	$(addprefix tests/engine/test_,$(addsuffix .py,graph_runner ragged_step late_device late_draw)) \
	tests/engine/native/test_machines.py

.PHONY: demo setup test lint types unit apart calls clean

demo: .venv/.demo
	$(BIN)/voiceloop demo

setup: .venv/.installed

.venv/.demo: EXTRAS = embedded
.venv/.installed: EXTRAS = embedded,dev
.venv/.demo .venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else f"VoiceLoop needs Python 3.11, 3.12 or 3.13; {sys.executable} is {v.major}.{v.minor}. Try: make demo PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	@if [ -n "$(TORCH_INDEX)" ]; then $(PIP) --no-deps --index-url "$(TORCH_INDEX)" torch; fi
	$(PIP) -e ".[$(EXTRAS)]"
	@$(BIN)/python -m engine.native.build   # with a C compiler; without, it says what that costs
	@touch .venv/.demo $@

test: setup lint types unit apart calls

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not call" $(APART:%=--ignore=%)

apart: setup
	$(BIN)/pytest -q -n 2 --dist worksteal --timeout=600 -m "not call" $(APART)

calls: setup
	# Whole files, for some go on from test to test, the longest first; three at once, for they wait more
	# than they compute.
	$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m call `grep -rl mark.call --include=test_*.py tests`

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache out
