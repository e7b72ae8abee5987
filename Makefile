# Every verb does its own set-up: Python 3.11 or later and make are all a machine needs.
# VENV=path puts the environment elsewhere; PYTHON=path chooses the interpreter that makes it.
VENV ?= .venv
PYTHON ?=
BENCH ?=
# make serve: replayed seconds per second, and the port of the dashboard.
SPEED ?= 600
PORT ?= 8000
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo serve test lint docs docs-serve dist bench

help:  ## say what each verb does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 14

demo: $(STAMPS)/core  ## train on the embedded data beside three baselines and write demo/report.html
	@$(BIN)/fourpoint demo

serve: $(STAMPS)/serve  ## replay the embedded data to a live service with a dashboard (SPEED=600 PORT=8000)
	@$(BIN)/python -m fourpoint.serve.demo --speed $(SPEED) --port $(PORT)

test: lint  ## lint, then unit tests, laws, doctests and the README's code blocks
	@$(BIN)/python -m pytest -q -n 2

lint: $(STAMPS)/dev  ## ruff, mypy and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(STAMPS)/docs  ## build the site into site/: run the tutorials, check links and code blocks
	@$(BIN)/python -m pytest -q -n 2 tests/test_docs.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(STAMPS)/docs  ## show the site at http://127.0.0.1:8000
	@FOURPOINT_DOCS_REUSE=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

dist: $(STAMPS)/dist  ## build wheel and sdist, check them, install the wheel elsewhere and run the quick start
	@$(BIN)/python scripts/check_dist.py

bench: $(STAMPS)/bench  ## run every benchmark beside its peers and write docs/performance.md (BENCH="--quick": five minutes)
	@$(BIN)/python benchmarks/run.py $(BENCH)

$(STAMPS)/venv:
	@test -x $(BIN)/python || { \
	  found=; for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found="$$candidate"; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "expected Python 3.11 or later with its venv module; received $$(python3 --version 2>&1 || true). Install one, or run: make PYTHON=/path/to/python3.11 VERB" >&2; exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$($$found --version)"; "$$found" -m venv $(VENV); }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/core: pyproject.toml constraints.txt | $(STAMPS)/venv
	@echo "Installing Fourpoint into $(VENV) (a minute or two the first time)"
	@$(PIP) -e .
	@touch $@

$(STAMPS)/serve: pyproject.toml constraints.txt | $(STAMPS)/venv
	@echo "Installing Fourpoint and its service into $(VENV) (a minute or two the first time)"
	@$(PIP) -e '.[serve]'
	@touch $@ $(STAMPS)/core

$(STAMPS)/dev: pyproject.toml constraints.txt | $(STAMPS)/venv
	@echo "Installing Fourpoint and its test tools into $(VENV) (a minute or two the first time)"
	@$(PIP) -e '.[dev]'
	@touch $@ $(STAMPS)/core

$(STAMPS)/docs: pyproject.toml constraints.txt | $(STAMPS)/venv
	@echo "Installing Fourpoint and the tools of its documentation into $(VENV) (a minute or two the first time)"
	@$(PIP) -e '.[dev,docs]'
	@touch $@ $(STAMPS)/core $(STAMPS)/dev

$(STAMPS)/dist: pyproject.toml constraints.txt | $(STAMPS)/venv
	@$(PIP) -e '.[dist]'
	@touch $@ $(STAMPS)/core

# A peer that cannot be installed here is left out, and the tables show it as missing.
$(STAMPS)/bench: pyproject.toml constraints.txt | $(STAMPS)/venv
	@echo "Installing Fourpoint and the peers of its benchmarks into $(VENV) (a few minutes the first time)"
	@$(PIP) -e '.[fast,bench]' || { $(PIP) -e '.[fast]' && \
	  for peer in $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['bench'])"); do \
	    $(PIP) "$$peer" || echo "expected to install $$peer; it could not be, and its rows will say missing. Install it by hand, or go on without."; done; }
	@touch $@ $(STAMPS)/core
