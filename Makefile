# The two commands of a newcomer: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo setup test lint types unit calls clean

demo: setup
	$(BIN)/voiceloop demo

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 13) else f"VoiceLoop needs Python 3.11 or 3.12; {sys.executable} is {v.major}.{v.minor}. Try: make setup PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --progress-bar on -c constraints.txt -e ".[embedded,dev]"
	@touch $@

test: setup lint types unit calls

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/pytest -q -n 2 --dist loadfile -m "not call"

calls: setup
	$(BIN)/pytest -q -m call

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache out
