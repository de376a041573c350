# Two commands: `make demo` and `make test`. Each sets up what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# On all cores, where pip takes one; tests and most models are never imported, and some files of others are no Python.
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests/|/transformers/models/' $(VENV)/lib || true
# Threads that wait do so asleep: on a busy machine spinning ones cost twenty times the work. The package sees to
# it itself, but pytest loads torch before it.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: setup demo test test-everywhere scorecard lint docs listings notebooks bench clean

demo: setup
	$(BIN)/consilience run examples/quickstart.yaml --overwrite

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest

# As other processors would round, with other numbers of threads, in random order: an hour on two cores.
test-everywhere: $(VENV)/.dev
	MKL_CBWR=AVX2 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --random-order
	MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=2 $(BIN)/python -m pytest --random-order
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=4 $(BIN)/python -m pytest --random-order
	ATEN_CPU_CAPABILITY=avx2 $(BIN)/python -m pytest --random-order

scorecard: $(VENV)/.dev  # docs/reliability.md, in half an hour; the machine should do nothing else
	$(BIN)/python -m scorecard

bench: setup  # needs MNIST in CONSILIENCE_DATA, and makes virtual environments for the peers
	$(BIN)/python benchmarks/cpu.py

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.dev  # the site, in site/; to search in it: python -m http.server -d site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

listings: setup  # what `consilience methods` and docs/methods.md say
	$(BIN)/python tools/make_listings.py

notebooks: setup  # what the cells of docs/notebooks/ show
	$(BIN)/python tools/run_notebooks.py

setup: $(VENV)/.runtime

$(VENV)/.runtime: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "consilience needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) pip hatchling editables  # the pip that comes with Python may take twice as long
	$(INSTALL) torch==2.13.0
	$(INSTALL) --no-build-isolation -e .
	$(COMPILE)
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(INSTALL) --no-build-isolation -e '.[dev,docs]'
	# curvlinops names it, but does not import it; transformers and torchmetrics do where it is, and PyPI's needs CUDA.
	$(BIN)/python -m pip uninstall --quiet --yes torchvision
	$(COMPILE)
	touch $@

clean:
	rm -rf $(VENV) runs site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
