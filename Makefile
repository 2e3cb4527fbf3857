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
export TF_CPP_MIN_LOG_LEVEL ?= 2

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SECONDARY:
.PHONY: help setup demo test check docs format audit

help:
	@echo "make demo    train, evaluate, export and use a pronunciation model"
	@echo "make test    run the tests on $(BACKENDS)"
	@echo "make check   format check, lint, types, the site, tests"
	@echo "make docs    write the site to docs/_build/html"
	@echo "make format  format the code and fix what the linter can"
	@echo "make audit   look up known vulnerabilities of what is installed"
	@echo "make setup   only prepare the development environment"
	@echo
	@echo "VENV=$(VENV)  PYTHON=$(PYTHON) (3.11 to 3.13)  ARGS=options of the demo"

setup: $(VENV)/.installed-dev
	@echo "Ready: source $(BIN)/activate"

demo: $(VENV)/.installed-examples
	@$(BIN)/python examples/pronounce.py $(ARGS)

test: $(BACKENDS:%=test-%)

# The workers and the child processes of tests share the bytecode of the modules.
test-%: $(VENV)/.installed-dev
	@echo "Tests on $*:"
	@PYTHONDONTWRITEBYTECODE= KERAS_BACKEND=$* $(BIN)/python -m pytest --numprocesses auto \
		--dist loadscope --no-loadscope-reorder --share-cases --durations 20

check: $(VENV)/.installed-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(SITE)
	@$(MAKE) --no-print-directory test

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
