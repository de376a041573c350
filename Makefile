# Two commands: `make demo` and `make test`. Each sets up what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# Nothing is installed whose digest is not in the lock, but for torch: each machine has the build that it needs.
LOCKED := $(INSTALL) -c requirements.lock
# On all cores, where pip takes one; tests and most models are never imported, and some files of others are no Python.
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests/|/transformers/models/' $(VENV)/lib || true
# Threads that wait do so asleep: on a busy machine spinning ones cost twenty times the work. The package sees to
# it itself, but pytest loads torch before it.
export OMP_WAIT_POLICY ?= PASSIVE
# Tests start hundreds of processes, none of which should compile Python again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-everywhere scorecard lint docs listings notebooks results bench wheel lock sbom audit clean

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

scorecard: $(VENV)/.dev  # docs/reliability.md, in 15 minutes; the machine should do nothing else
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

results: setup  # RESULTS.md
	$(BIN)/python tools/make_results.py

notebooks: setup  # what the cells of docs/notebooks/ show
	$(BIN)/python tools/run_notebooks.py

wheel: setup  # in dist/; the same bytes from the same sources, wherever and whenever it is built
	$(BIN)/python -c 'from hatchling.build import build_wheel; print("dist/" + build_wheel("dist"))'

lock: setup  # requirements.lock anew, from constraints.txt and PyPI
	$(BIN)/python tools/make_lock.py

sbom: setup  # what is installed, as CycloneDX
	$(BIN)/python tools/make_sbom.py > sbom.cdx.json

audit: setup  # known vulnerabilities of what is pinned; no part of the tests, which must not depend on a network
	@$(BIN)/python tools/audit.py $(VENV)/audit

setup: $(VENV)/.runtime

$(VENV)/.runtime: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "consilience needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	# The pip that comes with Python takes no digests from constraints, and twice as long.
	sed -n '/^pip==/,/[^\\]$$/p' requirements.lock > $(VENV)/pip.txt
	$(INSTALL) -r $(VENV)/pip.txt
	$(LOCKED) hatchling editables
	$(LOCKED) filelock fsspec jinja2 networkx setuptools sympy typing_extensions  # what torch needs
	$(INSTALL) -c constraints.txt torch==2.13.0
	$(BIN)/python tools/dependencies.py > $(VENV)/runtime.txt
	$(LOCKED) -r $(VENV)/runtime.txt
	$(INSTALL) --no-build-isolation --no-deps -e .
	$(COMPILE)
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python tools/dependencies.py dev docs > $(VENV)/dev.txt
	$(LOCKED) -r $(VENV)/dev.txt
	# curvlinops names it, but does not import it; transformers and torchmetrics do where it is, and PyPI's needs CUDA.
	$(BIN)/python -m pip uninstall --quiet --yes torchvision
	$(COMPILE)
	touch $@

clean:
	rm -rf $(VENV) dist runs site sbom.cdx.json .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
