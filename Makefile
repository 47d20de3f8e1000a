# Two commands are enough: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Most tests wait most of the time. A file's tests run in their order, in one process.
WORKERS ?= 4
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# `make down` finds the cluster of `make demo` by this.
down clean: export HPCDL_SITE ?= embedded

.PHONY: help demo down test test-fast test-matrix test-gpu-build test-lowest test-reframe test-long drill bench lint audit docs site man pictures golden wheel release venv system clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo:  ## the demo: cluster, stack, training on 2 nodes, checks with verdicts
	@bash tools/system.sh cluster mpi modules build python
	@$(MAKE) -s --no-print-directory $(if $(wildcard $(VENV)/.done),venv,$(VENV)/.demo)
	@PATH="$(abspath $(BIN)):$$PATH" bash tools/demo.sh $(STEPS)

down:  ## stop the embedded cluster; no process or mount is left
	@if [ -x $(BIN)/hpcdl ]; then $(BIN)/hpcdl cluster down; \
	elif command -v $(PYTHON) >/dev/null; then $(PYTHON) -m tools.down; \
	else echo "nothing was running: there is no $(PYTHON)"; fi

test: system lint  ## everything: lint, types, unit, golden, and integration tests
	$(PYTEST) $(PARALLEL) -m "not long and not matrix and not gpu_build"

test-fast: lint  ## lint, types, unit and golden tests: no cluster, no TensorFlow
	$(PYTEST) -q $(PARALLEL) -m "not long and not matrix and not gpu_build" tests/unit tests/golden

test-matrix: venv  ## Slurm 20.11, 22.05, 24.11 and 26.05, each from a Debian that has it; the demo on Debian 13 (root; 15 minutes)
	@bash tools/system.sh matrix mpi
	$(PYTEST) -m "matrix and not long" tests/matrix

test-gpu-build: venv  ## GPU stacks by clang and by nvcc in Debian rootfs, loaded without a GPU; bazel with nvcc (root; 90 minutes)
	@bash tools/system.sh matrix
	$(PYTEST) -m gpu_build tests/integration/test_gpu_build.py tests/integration/test_bazel_cuda.py

test-lowest: venv  ## unit and golden tests with the oldest dependencies that setup.cfg allows
	@$(PYTHON) -m venv --clear $(VENV)-lowest
	@$(BIN)/uv pip install --quiet --python $(VENV)-lowest --resolution lowest-direct --editable '.[test]'
	$(VENV)-lowest/bin/python -m pytest -q $(PARALLEL) -m "not long" tests/unit tests/golden

test-reframe: venv  ## every supported release of ReFrame, each in an environment of its own
	$(BIN)/python -m tests.reframe_venvs

test-long: system venv  ## tests that take hours: stress, killed publishes, nights, studies
	$(PYTEST) -m long

drill: system venv  ## commands killed, disks full, Slurm away: hours; DRILLS=0.1 for a tenth, DRILL=NAME for one
	$(BIN)/python -m tests.drill $(DRILL)

bench: system venv  ## speed of training, and how soon a drop is seen
	$(BIN)/python -m tools.bench

lint: venv  ## ruff, mypy --strict and bandit
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/bandit -q -ll -r hpcdl examples modulefiles reframe_checks spack templates tools \
	2> $(VENV)/bandit.log || { cat $(VENV)/bandit.log; exit 1; }

audit: lint  ## lint, pip-audit and shellcheck: our code, what is installed, scripts
	@$(BIN)/uvx pip-audit --progress-spinner off --path $(wildcard $(VENV)/lib/python3*/site-packages)
	@shellcheck tools/*.sh .ci/run
	$(PYTEST) -q -k shellcheck tests/golden

docs: venv  ## write the generated pages: site file, job file, exit codes, commands, rules
	$(BIN)/python -m tools.docs

site: venv  ## dist/site: the documentation as a web site that needs no server; every link is checked
	@$(BIN)/python -m pip install --quiet --editable '.[site]'
	$(BIN)/mkdocs build

man: venv  ## dist/man: manual pages, from the declarations of the commands
	@$(BIN)/python -m tools.man dist/man

pictures: venv  ## the pictures of README, with Chromium
	@$(BIN)/python -m tools.pictures

golden: venv  ## write the golden scripts and errors
	$(BIN)/python -m tests.golden.regenerate

wheel: venv  ## dist/hpcdl-*.whl
	@rm -rf build
	$(BIN)/python -m build --wheel --outdir dist .

release: venv  ## dry run: wheel and sdist of the last commit, built twice, compared and checked
	@$(BIN)/python -m pip install --quiet twine check-wheel-contents
	@$(BIN)/python -m tools.release

venv: $(VENV)/.done  ## the development environment in .venv

# The demo needs half of it.
$(VENV)/.demo: extras := checks,lint,records,stack
$(VENV)/.done: extras := dev
$(VENV)/.demo $(VENV)/.done: setup.cfg pyproject.toml
	@echo "making $(VENV): hpcdl[$(extras)], from PyPI"
	@$(PYTHON) tools/check_python.py
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade --editable '.[$(extras)]'
	@touch $@

system:  ## install system packages with apt; prints which first
	@bash tools/system.sh

clean: down  ## remove everything that was built in this directory
	rm -rf $(VENV) $(VENV)-lowest build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
