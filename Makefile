# `make demo` and `make test` set everything up on a fresh machine: a virtual environment, pinned packages.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-slow test-gpu test-oldest lint format docs benchmark clean

setup: .venv/ready

# Packages are compiled on all cores, where pip takes one; a file that is no Python of this version is left out.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12)) or None' || \
		(echo "headway needs Python 3.11 or 3.12: make $(MAKECMDGOALS) PYTHON=python3.12" && exit 1)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[test]'
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	touch $@

demo: setup
	$(BIN)/headway study quick

# One process a core, one thread a process; tests of one file stay together.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$(nproc 2>/dev/null || echo 2)

test: setup lint
	$(PYTEST) --dist loadfile --no-loadscope-reorder -m "not gpu and not slow"  # in order: the long files come first
	TRITON_INTERPRET=1 $(PYTEST) --dist worksteal -m "not slow" tests/gpu  # the GPU kernels, interpreted on the CPU
	@$(BIN)/python tests/gpu/run.py --check

test-slow: setup  # what takes tens of seconds a test; continuous integration runs it too
	$(PYTEST) --dist loadfile -m "slow and not gpu"
	TRITON_INTERPRET=1 $(PYTEST) --dist worksteal -m slow tests/gpu

test-oldest: .venv-oldest/ready  # the library and fusing with the oldest supported versions of torch and transformers
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -n $$(nproc 2>/dev/null || echo 2) --dist loadfile \
		-m "not gpu and not slow" tests/parity tests/unit/bias tests/unit/attention tests/unit/encodings tests/unit/models \
		tests/unit/pretrained/fusing/test_same_numbers.py

.venv-oldest/ready: pyproject.toml
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check \
		'torch==2.11.*' 'transformers==5.17.*' -e '.[models,metrics]' pytest pytest-xdist hypothesis
	touch $@

test-gpu:  # on a machine with a CUDA GPU, in as many processes as there are cores; writes tests/gpu/record.json
	$(or $(wildcard $(BIN)/python),$(PYTHON)) tests/gpu/run.py

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict  # site/index.html

benchmark: setup
	$(BIN)/python -m benchmarks.cpu_attention

clean:
	rm -rf .venv .venv-oldest
