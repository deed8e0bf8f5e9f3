# Every target sets up what it needs: a fresh clone, python3 (3.11 or newer) and make are enough.
# What is already there is left alone, so a second run goes straight to the work.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
# One shell per recipe, so that a recipe reads as a script.
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# -qq leaves errors only: notes about places that were searched in vain help nobody.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
PYTEST := $(BIN)/python -m pytest
# Arguments for the program started: make demo ARGS=--help, make unit ARGS="-k sglang".
ARGS ?=

# Stamps: this environment holds what pyproject.toml asked for, to run and to develop.
RUN := $(VENV)/.installed-to-run
DEV := $(VENV)/.installed-to-develop

# package:command, for programs the tests start.
DEBIAN_PACKAGES := prometheus:promtool prometheus:prometheus \
	prometheus-alertmanager:prometheus-alertmanager prometheus-alertmanager:amtool

# Installs Debian packages; apt's long output is shown only if it fails. policy-rc.d keeps a daemon
# from starting: the tests want the program, on a port of their own.
define APT_INSTALL
apt_install() {
	local log
	log=$$(mktemp)
	if [[ ! -e /usr/sbin/policy-rc.d ]]; then
		printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
		chmod +x /usr/sbin/policy-rc.d
		trap 'rm -f /usr/sbin/policy-rc.d' EXIT
	fi
	echo "Installing Debian packages: $$*"
	export DEBIAN_FRONTEND=noninteractive
	if ! { apt-get -q update; apt-get -q install -y --no-install-recommends "$$@"; } </dev/null &>"$$log"; then
		cat "$$log"
		return 1
	fi
	rm -f "$$log"
}
can_apt() { (( EUID == 0 )) && command -v apt-get >/dev/null; }
endef

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1@\2/p' Makefile | awk -F@ '{ printf "%-14s %s\n", $$1, $$2 }'

.PHONY: demo
demo: $(RUN) ## try it: two recorded engines, the exporter beside them
	@exec $(BIN)/kvcache-exporter demo $(ARGS)

.PHONY: test
test: $(DEV) programs lint ## everything: lint, types, all tests, real engines included (not `mutation`)
	@$(PYTEST) -m "not mutation" $(ARGS)

.PHONY: mutation
mutation: $(DEV) programs ## every alert changed in every way: does a case notice? (some ten minutes)
	@$(PYTEST) -m mutation $(ARGS)

.PHONY: lint
lint: $(DEV) ## ruff and mypy
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: unit
unit: $(DEV) programs ## the tests that need no engine
	@KVCACHE_RIG=off $(PYTEST) -m "not rig and not mutation" $(ARGS)

.PHONY: rig
rig: $(DEV) ## only the tests against real engines; they build the engines' environment
	@$(PYTEST) -m rig $(ARGS)

.PHONY: bench
bench: $(DEV) ## what the exporter costs: time and memory
	@shopt -s nullglob
	for program in tests/bench/[!_]*.py; do
		echo "== $$program"
		$(BIN)/python "$$program" $(ARGS)
	done

.PHONY: golden
golden: $(DEV) ## write the expected pages anew; read the diff before committing it
	@KVCACHE_RIG=off $(PYTEST) -m "not rig" --golden-update $(ARGS)

.PHONY: docs
docs: $(RUN) ## write the generated parts of the README anew
	@$(BIN)/python -m exporter.docs README.md

.PHONY: boards
boards: $(DEV) ## write the Grafana boards anew
	@$(BIN)/python -m grafana.build

.PHONY: clean
clean: ## remove the environment, caches and builds; .cache (engines) stays, it took long to build
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(APT_INSTALL)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "python3 is $$($(PYTHON) -V); 3.11 or newer is needed (make PYTHON=python3.12 ...)" >&2; exit 1; }
	# Debian packs these two modules apart from python3.
	if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then
		can_apt || { echo "python3 has no venv module: install python3-venv" >&2; exit 1; }
		apt_install python3-venv
	fi
	echo "Creating $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(RUN): pyproject.toml | $(BIN)/python
	@echo "Installing kvcache-exporter into $(VENV)"
	$(PIP) install -e .
	touch $@

# Dependency groups came with pip 25.1; Debian 12's is older.
$(DEV): pyproject.toml | $(BIN)/python
	@echo "Installing kvcache-exporter and what its tests need into $(VENV)"
	$(PIP) install 'pip>=25.1'
	$(PIP) install -e . --group dev
	touch $(RUN) $@

.PHONY: programs
programs:
	@$(APT_INSTALL)
	declare -A missing=()
	for pair in $(DEBIAN_PACKAGES); do
		command -v "$${pair#*:}" >/dev/null || missing[$${pair%:*}]=1
	done
	(( $${#missing[@]} )) || exit 0
	if can_apt; then
		apt_install "$${!missing[@]}"
	else
		echo "Not installed (needs root and apt-get), tests that use it are skipped: $${!missing[*]}" >&2
	fi
