# Everything runs in the virtual environment $(VENV), which the targets set up
# themselves: once, and again whenever pyproject.toml changes.

PYTHON ?= python3
VENV ?= .venv
BACKENDS ?= tensorflow jax torch
ARGS ?=

BIN := $(VENV)/bin
# A warning, such as one of a link without a target, is an error.
SITE := $(BIN)/python -m sphinx --builder html --nitpicky --fail-on-warning --keep-going \
	--fresh-env --quiet docs docs/_build/html

export KERAS_BACKEND ?= tensorflow

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SECONDARY:
.PHONY: help setup demo test test-slow test-random test-all check coverage docs format audit

help:
	@echo "make demo      train, evaluate, export and use a pronunciation model"
	@echo "make test      run the unit tests on $(BACKENDS)"
	@echo "make test-all  also run the slow tests: trainings, servers, installations, pages"
	@echo "make check     format check, lint, types, the site, unit tests"
	@echo "make coverage  the lines of the package that the unit tests and all tests run"
	@echo "make docs      write the site to docs/_build/html"
	@echo "make format    format the code and fix what the linter can"
	@echo "make audit     look up known vulnerabilities of what is installed"
	@echo "make setup     only prepare the development environment"
	@echo
	@echo "VENV=$(VENV)  PYTHON=$(PYTHON) (3.11 to 3.13)  ARGS=options of the demo"

setup: $(VENV)/.installed-dev
	@echo "Ready: source $(BIN)/activate"

demo: $(VENV)/.installed-examples
	@$(BIN)/python examples/pronounce.py $(ARGS)

PYTEST := $(BIN)/python -m pytest
PARALLEL := --numprocesses auto --dist loadscope

# A failure on one backend does not keep the others from running.
define on-every-backend
	@failed=; for backend in $(BACKENDS); do \
		echo "$(1) on $$backend:"; \
		KERAS_BACKEND=$$backend $(PYTEST) $(PARALLEL) $(2) || failed="$$failed $$backend"; \
	done; \
	if [ -n "$$failed" ]; then echo "Failed on:$$failed"; exit 1; fi
endef

test: $(VENV)/.installed-dev
	$(call on-every-backend,Unit tests,-m "not slow")

test-slow: $(VENV)/.installed-dev
	$(call on-every-backend,Slow tests,-m slow)

test-%: $(VENV)/.installed-dev
	@KERAS_BACKEND=$* $(PYTEST) $(PARALLEL) -m "not slow"

# The order of the tests makes no difference: one process, another order each time.
test-random: $(VENV)/.installed-dev
	@KERAS_BACKEND=torch $(PYTEST) -m "not slow" --random-order

test-all:
	@failed=; for tests in test test-slow test-random; do \
		$(MAKE) --no-print-directory $$tests || failed="$$failed $$tests"; \
	done; \
	if [ -n "$$failed" ]; then echo "Failed:$$failed"; exit 1; fi

check: $(VENV)/.installed-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/zizmor --offline --quiet .github/workflows
	@$(SITE)
	@$(MAKE) --no-print-directory test

# The share of the lines that the unit tests run, then the unit tests and the slow tests.
coverage: $(VENV)/.installed-dev
	@$(BIN)/coverage erase
	@for tests in test test-slow; do \
		PYTEST_ADDOPTS="--cov --cov-append --cov-report=" \
			$(MAKE) --no-print-directory $$tests || exit 1; \
		echo "Covered after make $$tests:"; $(BIN)/coverage report --format=total; \
	done
	@$(BIN)/coverage report --skip-covered --sort=miss

docs: $(VENV)/.installed-docs
	@$(SITE)
	@echo "The site: docs/_build/html/index.html"

format: $(VENV)/.installed-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

audit: $(VENV)/.installed-dev
	@$(BIN)/python -m pip_audit --skip-editable --progress-spinner off

# The stamp comes last. An installation that was killed half-way leaves .installing
# behind, and perhaps half a package, so the next one starts from an empty environment.
$(VENV)/.installed-%: pyproject.toml
	@if [ -e $(VENV)/.installing ]; then $(PYTHON) -m venv --clear $(VENV); fi
	@if [ ! -x $(BIN)/pip ]; then $(PYTHON) -m venv $(VENV); fi
	@echo "Installing the library with [$*] into $(VENV): some minutes the first time."
	@touch $(VENV)/.installing
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$*]"; \
		status=$$?; rm -f $(VENV)/.installing; exit $$status
	@touch $@
