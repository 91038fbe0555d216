# One command each; `make help` lists them. Everything is installed into .venv/; stamps in it say what is done, so that
# a second run starts at once. A changed pyproject.toml installs again, a changed front-end source builds again.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

PYTHON := .venv/bin/python
# without compiling: Python does that for the modules that are imported, a tenth of them (76 instead of 46 s, 2 cores)
PIP := $(PYTHON) -m pip install --quiet --disable-pip-version-check --prefer-binary --no-compile
FRONT := gdlab/labextension/package.json
FRONT_SOURCES := $(shell find labextension/src labextension/build.mjs labextension/package.json labextension/package-lock.json -type f)
ROOT := $(filter 0,$(shell id -u))

# What this machine must have: as root with apt everything can be installed, so nothing may be missing (tests/helpers/machine.py).
GDLAB_EXPECT ?= $(if $(and $(ROOT),$(shell command -v apt-get)),lavapipe$(comma)chromium$(comma)typescript$(comma)mpi$(comma)posix)
comma := ,
export GDLAB_EXPECT
unexport VIRTUAL_ENV # somebody's other environment, of which IPython would warn in every kernel

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: .venv/.demo ## set everything up and run the tour, end to end, on the best device there is
	@.ci/setup vulkan || echo "going on with device cpu"
	@$(PYTHON) notebooks/run_demo.py

.PHONY: lab
lab: .venv/.demo ## open JupyterLab on the tour
	@$(PYTHON) -m jupyterlab $(if $(ROOT),--allow-root) notebooks/tour.ipynb

.PHONY: test
test: .venv/.test .venv/.machine ## install what the tests need and run all of them
	@$(MAKE) -j3 lint types front
	@$(PYTHON) tests/run.py

.PHONY: lint
lint: .venv/.test ## ruff
	@$(PYTHON) -m ruff check .

.PHONY: types
types: .venv/.test ## mypy --strict
	@$(PYTHON) -m mypy --strict gdlab

.PHONY: front
front: .venv/.test ## tsc --strict, and the front-end tests that run in Node
	@$(PYTHON) labextension/frontend.py check

.PHONY: pytest
pytest: front .venv/.test .venv/.machine ## the Python tests in three lanes, one of which begins with a browser; then those that measure time
	@$(PYTHON) tests/run.py

.PHONY: lab44
lab44: .venv/.test .venv/.machine build/lab44/.made ## the tests in JupyterLab again, in JupyterLab 4.4
	@build/lab44/bin/python labextension/frontend.py
	@GDLAB_JUPYTER=$(CURDIR)/build/lab44/bin/python $(PYTHON) -m pytest -k "not seven and not notebook_7" \
		tests/jupyter/test_lab.py tests/jupyter/test_hosts.py tests/jupyter/test_two_views.py tests/jupyter/test_watches_lab.py

.PHONY: driver
driver: .venv/.test .venv/.machine ## the tests of kernels again, on lavapipe with all its optimization
	@GDLAB_SIZES=1 GALLIVM_PERF= LP_NATIVE_VECTOR_WIDTH= $(PYTHON) -m pytest -m "not browser and not clock" \
		tests/ops tests/kernels tests/devices

.PHONY: laws
laws: .venv/.test ## the optimizer's laws on 300 random graphs instead of 36
	@GDLAB_GRAPHS=300 $(PYTHON) -m pytest tests/rewrite/test_optimize_laws.py tests/rewrite/test_optimize_engines.py

.PHONY: faults
faults: .venv/.test .venv/.machine ## 10,000 random calls, 50 kills, threads side by side: the long form of the fault tests
	@GDLAB_FUZZ=10000 GDLAB_KILLS=50 GDLAB_ROUNDS=1000 GDLAB_CORRUPTIONS=400 $(PYTHON) -m pytest \
		tests/session/test_session_faults.py tests/session/test_checkpoint.py tests/plan/test_plan_cache.py

.PHONY: slow-pages
slow-pages: .venv/.test .venv/.machine ## the browser's tests on pages six times slower, far from their server: what reads too soon fails
	@GDLAB_SLOW=6 GDLAB_LATENCY=300 $(PYTHON) -m pytest -m "browser and not clock"

.PHONY: soak
soak: .venv/.test .venv/.machine ## 100,000 steps, and 200 studies one after the other: memory stays flat, losses exact
	@GDLAB_SOAK=100000 GDLAB_STUDIES=200 $(PYTHON) -m pytest tests/session/test_soak.py tests/study/test_long_lived.py

.PHONY: numbers
numbers: .venv/.test .venv/.machine ## sizes and counts are one number each: every model, every update
	@GDLAB_NUMBERS=1 $(PYTHON) -m pytest tests/view/test_numbers.py

.PHONY: matrix
matrix: .venv/.test .venv/.machine ## the cases of which the other tests take the first: sizes, pairs, random graphs, hosts
	@GDLAB_MATRIX=1 $(PYTHON) -m pytest -m "not clock" $$(grep -lrE --include="test_*.py" "^from matrix import|check_gradient|^from jax_cases" tests)

.PHONY: bench
bench: .venv/.test ## print the benchmark table
	@$(PYTHON) -m benchmarks

.PHONY: pictures
pictures: .venv/.test .venv/.machine ## make the pictures of docs/pictures again
	@$(PYTHON) docs/pictures.py

.PHONY: pages
pages: .venv/.demo ## the tour and the lessons as pages that train on their reader's own GPU, for any static host
	@$(PYTHON) notebooks/pages.py

.PHONY: shots
shots: .venv/.test .venv/.machine ## draw 45 views of eight networks into a folder: make shots TO=/tmp/shots
	@$(PYTHON) docs/shots.py $(or $(TO),build/shots/views)

.PHONY: fix
fix: .venv/.test ## format, and mend what ruff can mend
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m ruff check --fix .

.venv/.made:
	@.ci/setup venv
	@touch $@

$(FRONT): $(FRONT_SOURCES) | .venv/.made
	@echo "building the front end"
	@$(PYTHON) labextension/frontend.py

build/lab44/.made: .venv/.made pyproject.toml hatch_build.py | $(FRONT)
	@echo "installing JupyterLab 4.4 into build/lab44 (the first time this takes a minute or two)"
	@$(PYTHON) -m venv build/lab44
	@build/lab44/bin/python -m pip install --quiet --disable-pip-version-check --prefer-binary 'jupyterlab==4.4.*' -e '.[demo]'
	@touch $@

.venv/.demo .venv/.test: .venv/.%: .venv/.made pyproject.toml hatch_build.py | $(FRONT)
	@echo "installing gdlab and what it needs into .venv (the first time this takes a minute or two)"
	@$(PIP) -e '.[$*]'
	@touch $@

# Nothing is stamped while something is missing, so that it is said each time.
.venv/.machine: .venv/.test
	@.ci/setup tests && touch $@ || echo "going on: tests that need what is missing are skipped, or fail if GDLAB_EXPECT names it"
