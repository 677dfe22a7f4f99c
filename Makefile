# Every target stands alone: it makes the virtual environment first when there is none.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# uv fetches several packages at a time; pip installs where uv is not on PATH and cannot be installed either.
# constraints.txt has the exact versions that the tests have passed with.
EXTRAS := dev
install = export PATH="$(BIN):$$PATH" VIRTUAL_ENV=$(VENV); \
	packages="--quiet --constraint constraints.txt --editable .[$(EXTRAS)]"; \
	{ command -v uv >/dev/null || pip install --quiet uv; } && uv pip install $$packages || pip install $$packages
SWEEP := digits-$(shell date +%Y%m%d-%H%M%S)

RAYS := 2.54.1 2.57.1 2.60.0

.PHONY: quickstart test test-all compat lint docs mutants clean

# A small sweep over batch sizes and workers on this machine, and its report: scikit-learn's digits, no network.
quickstart: $(VENV)/installed
	$(BIN)/cifar-ray sweep examples/digits_sweep.yaml --name $(SWEEP)
	$(BIN)/cifar-ray report $(SWEEP) --out report

# Needs no network and no data set; tests of real data run when CIFAR_RAY_DATA_DIR names a folder with it.
# Unit tests share nothing. The others start Ray, and tests of a file share what they start; two files at a time, since
# much of a start is waiting, the longest first.
# Files of unit tests are in memory where /dev/shm is, each until its test has passed: they would wait for the disk at
# each commit of a database and for each checkpoint.
MARKS := not slow and not cluster and not fault and not extended
WHOLE := -n 2 --dist loadfile --no-loadscope-reorder tests/cluster tests/integration/test_readme.py tests/integration
test: $(VENV)/installed
	( files=$$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d); trap 'rm -rf "$$files"' EXIT INT TERM; \
	TMPDIR=$$files $(BIN)/pytest -m "$(MARKS)" -n logical --maxprocesses 4 --dist loadfile \
		-o tmp_path_retention_policy=failed tests/unit ) || failed=1; \
	$(BIN)/pytest -m "$(MARKS)" $(WHOLE) && exit $${failed:-0}

# Also the tests that start clusters of several nodes, kill processes, and take minutes, and those for GPUs on the CPU.
test-all: $(VENV)/installed
	$(BIN)/pytest || failed=1; \
	CIFAR_RAY_GPU_DRY_RUN=1 $(BIN)/pytest -m gpu && exit $${failed:-0}

# What any Ray promises, with the oldest, the newest and one between: each laid over the same environment. Then, with
# the newest, without its private parts. docs/measurements/ray.md has what it found.
compat: $(foreach version,$(RAYS),$(VENV)/rays/$(version)/ray)
	for version in $(RAYS); do \
		echo "Ray $$version"; \
		PYTHONPATH="$(abspath $(VENV))/rays/$$version" $(BIN)/pytest -m "compat or optional" || failed=1; \
	done; \
	echo "Ray $$version without its private parts"; \
	CIFAR_RAY_PLAIN_RAY=1 PYTHONPATH="$(abspath $(VENV))/rays/$$version" $(BIN)/pytest -m compat && exit $${failed:-0}

$(VENV)/rays/%/ray: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target $(VENV)/rays/$* ray==$*
	touch $@

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The pages of docs/ as a site, build/docs/index.html; a broken link between them or a warning fails it.
docs: $(VENV)/installed
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs

# Mistakes made on purpose, and how many of them the fast tests notice; hours for all of them. A part:
# make mutants MUTANTS='--sample 20 config/* data/*'; Ctrl-C prints what was decided by then.
mutants: EXTRAS := dev,mutants
mutants: $(VENV)/installed
	$(install)
	set -f; $(BIN)/python benchmarks/mutants.py $(MUTANTS)

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(install)
	touch $@

clean:
	rm -rf $(VENV)
