# Two commands: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Threads that wait do so asleep: on a busy machine spinning ones cost twenty times the work. The package sees to
# it itself, but pytest loads torch before it.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: setup demo test lint bench clean

demo: setup
	$(BIN)/consilience run examples/quickstart.yaml --overwrite

test: setup lint
	$(BIN)/python -m pytest

bench: setup  # needs MNIST in CONSILIENCE_DATA, and makes virtual environments for the peers
	$(BIN)/python benchmarks/cpu.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "consilience needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
