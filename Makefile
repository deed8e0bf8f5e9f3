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
VERSION = $(shell sed -nE 's/^__version__ = "(.*)"/\1/p' exporter/__init__.py)
# For `rig`: the engines run on this machine's NVIDIA GPU; a model directory of yours is checked too.
GPU ?=
MODEL ?=
# Arguments for the program started: make demo ARGS=--help, make unit ARGS="-k sglang".
ARGS ?=

# Stamps: this environment holds what pyproject.toml asked for, to run and to develop.
RUN := $(VENV)/.installed-to-run
DEV := $(VENV)/.installed-to-develop

# package:command, for programs the tests start.
DEBIAN_PACKAGES := prometheus:promtool prometheus:prometheus \
	prometheus-alertmanager:prometheus-alertmanager prometheus-alertmanager:amtool \
	curl:curl systemd:systemd-analyze shellcheck:shellcheck \
	victoria-metrics:vmalert victoria-metrics:victoria-metrics

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
test: $(DEV) programs lint ## everything: lint, types, all tests, real engines included
	@$(PYTEST) $(ARGS)

.PHONY: mutation
mutation: $(DEV) programs ## only this: every alert changed in every way, does a case notice? (four minutes)
	@$(PYTEST) -m mutation $(ARGS)

.PHONY: audit
audit: $(DEV) ## known weaknesses of the packages, and bandit; asks PyPI, so it needs the internet
	@$(PIP) install bandit pip-audit
	$(BIN)/bandit -q -ll --skip B610 -r exporter
	$(BIN)/pip-audit --local --skip-editable --progress-spinner off

# How many damaged inputs each test of `fuzz` makes; `test` makes 60.
EXAMPLES ?= 5000
.PHONY: fuzz
fuzz: $(DEV) ## parsers of untrusted input against damaged input, for longer (EXAMPLES=50000)
	@FUZZ_EXAMPLES=$(EXAMPLES) $(PYTEST) --timeout 0 tests/fuzz $(ARGS)

.PHONY: lint
lint: $(DEV) ## ruff and mypy
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: unit
unit: $(DEV) programs ## the tests that need no engine, without the mutation run
	@KVCACHE_RIG=off $(PYTEST) -m "not rig and not mutation" $(ARGS)

.PHONY: rig
rig: $(DEV) programs ## the checks against real engines, with a report: CPU, or GPU=1, or GPU=1 MODEL=/path
	@KVCACHE_RIG_GPU=$(GPU) KVCACHE_RIG_MODEL=$(MODEL) $(PYTEST) -m rig tests/rig $(ARGS)

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

.PHONY: lock
lock: $(DEV) ## write deploy/*.lock anew: all versions with their hashes, for every platform
	@$(PIP) install uv
	compile() {
		$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --upgrade \
			--no-emit-index-url --no-header --no-annotate "$$@"
	}
	compile pyproject.toml -o deploy/requirements.lock
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		| compile - -o deploy/build.lock

.PHONY: image
image: ## build the container image: make image IMAGE=name:tag ARGS=--push
	@: "$${IMAGE:=kvcache-exporter:$(VERSION)}" "$${PYTHON_TAG:=python:3.13-slim-bookworm}"
	digest=$$(docker buildx imagetools inspect "$$PYTHON_TAG" --format '{{.Manifest.Digest}}')
	docker buildx build --platform "$${PLATFORMS:-linux/amd64,linux/arm64}" -f deploy/Dockerfile -t "$$IMAGE" \
		--build-arg PYTHON_IMAGE="$$PYTHON_TAG@$$digest" --build-arg VERSION=$(VERSION) \
		--build-arg REVISION="$$(git rev-parse HEAD)" --build-arg CREATED="$$(date -u +%FT%TZ)" \
		--sbom=true --provenance=true $(ARGS) .

.PHONY: chart
chart: $(RUN) ## the Helm chart with rules and dashboards in it: dist/kvcache-exporter-VERSION.tgz
	@$(BIN)/python -m deploy.helm.assemble dist

.PHONY: sbom
sbom: $(DEV) ## what the image will hold, installed as the image does it: dist/kvcache-exporter.cdx.json
	@$(PIP) install cyclonedx-bom
	rm -rf build/image && mkdir -p build/image dist
	$(PYTHON) -m venv build/image/builder && $(PYTHON) -m venv --without-pip build/image/app
	build=build/image/builder/bin/python
	pip() { "$$build" -m pip --disable-pip-version-check -qq "$$@"; }
	pip install 'pip>=23'
	pip install --require-hashes --only-binary :all: -r deploy/build.lock
	pip --python build/image/app/bin/python install --require-hashes --only-binary :all: -r deploy/requirements.lock
	pip wheel --no-build-isolation --no-deps --wheel-dir build/image/wheel .
	pip --python build/image/app/bin/python install --no-index --no-deps build/image/wheel/*.whl
	pip --python build/image/app/bin/python check
	$(BIN)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml --mc-type application \
		-o dist/kvcache-exporter.cdx.json build/image/app/bin/python
	echo dist/kvcache-exporter.cdx.json

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
