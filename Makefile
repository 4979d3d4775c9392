# Everything a person does here, by name. `make serve` is the shortest way to a running stack.

# The python that makes the environment: python3 when it is new enough, else a newer one by name.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PIP_ARGS ?=
ARGS ?=
# Tests wait for processes and clocks more than they compute: more of them than cores.
TEST_PROCESSES ?= 4

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := jetflock deploy frontend worker detok shared
SOURCES := $(PACKAGES) $(wildcard bench) $(wildcard examples) tests

.PHONY: help serve install test test-integration test-gpu test-deep test-clients lint typecheck format bench bench-plane bench-engine bench-host bench-gpu bench-affinity bench-fairness bench-start bench-autoscale-sim chaos screenshots wheel clean

help:
	@echo "make serve             run everything on this machine (ARGS='--port 8001' for flags)"
	@echo "make install           make $(VENV) and install jetflock with its development tools"
	@echo "make test              all tests that need no GPU (ARGS='-k name' for some)"
	@echo "make test-integration  those that need a nats-server"
	@echo "make test-gpu          those that need an NVIDIA GPU"
	@echo "make test-deep         random stories of scheduler and cache, over 100,000 steps of each,"
	@echo "                       and of the protocol under simulated faults: 100,000 schedules"
	@echo "make test-clients      LangChain, instructor and lm-evaluation-harness against a service"
	@echo "make lint typecheck    what CI runs beside the tests"
	@echo "make format            format, and sort imports"
	@echo "make bench             the benchmarks (bench-plane: the serving plane without a model,"
	@echo "                       bench-engine: the engine without the plane, and its peers)"
	@echo "make bench-host        what a step costs the host, beside the model"
	@echo "make bench-gpu         how near the GPU engine comes to what the hardware can do"
	@echo "make bench-affinity    prefix cache hits of conversations over two workers, and over one"
	@echo "make bench-autoscale-sim  the autoscaler's policy on simulated traffic"
	@echo "make chaos             streams under faults, each checked against its undisturbed run"
	@echo "make bench-fairness    waiting times of a tenant with few requests beside one with many"
	@echo "make bench-start       how long 'make serve' takes until it is ready, and on what"
	@echo "make screenshots       the pictures of the page in docs/images (needs a Chromium)"
	@echo "make wheel             build dist/jetflock-*.whl"
	@echo "make clean             remove what builds and tools left, but no environment"
	@echo "PYTHON=python3.12 chooses the interpreter, PIP_ARGS=... goes to pip, TEST_PROCESSES=1 tests"
	@echo "one after the other"

# The stamp makes the second run quick: pip runs again only when the dependencies changed.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "jetflock needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "cannot make $(VENV): install the venv module (Debian: apt install python3-venv)"; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) -e '.[dev]'
	@touch $@

install: $(STAMP)

serve: $(STAMP)
	@exec $(BIN)/jetflock serve $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -m "not gpu" $(ARGS)

test-integration: $(STAMP)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -m "integration and not gpu" $(ARGS)

test-deep: $(STAMP)
	JETFLOCK_TEST_DEEP=1 $(BIN)/python -m pytest -s -o timeout=3600 $(ARGS) \
		tests/worker/engine/test_kv_model.py tests/worker/engine/test_scheduler_properties.py \
		tests/simulation/test_rules.py
	$(BIN)/python -m tests.simulation --num 100000

# LangChain, instructor and lm-evaluation-harness pin what we do not: an environment of their own.
CLIENTS_VENV ?= .venv-clients
CLIENTS_STAMP := $(CLIENTS_VENV)/.installed
$(CLIENTS_STAMP): tests/clients/requirements.txt
	@test -x $(CLIENTS_VENV)/bin/python || $(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) -r $<
	@touch $@

test-clients: $(STAMP) $(CLIENTS_STAMP)
	JETFLOCK="$(abspath $(BIN))/jetflock" $(CLIENTS_VENV)/bin/python -m pytest \
		-c tests/clients/pytest.ini tests/clients $(ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports

typecheck: $(STAMP)
	$(BIN)/mypy $(PACKAGES) bench/chaos $(wildcard examples)

format: $(STAMP)
	$(BIN)/ruff check --fix --select I $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench bench-plane bench-engine bench-host bench-gpu bench-affinity bench-fairness bench-start: $(STAMP)
	$(BIN)/python -m $(subst -,.,$@) $(ARGS)

bench-autoscale-sim: $(STAMP)
	$(BIN)/python -m bench.autoscale_sim $(ARGS)

chaos: $(STAMP)
	$(BIN)/python -m bench.chaos $(ARGS)

screenshots: $(STAMP)
	$(BIN)/python -m tests.frontend.page.screenshots $(ARGS)

wheel: $(STAMP)
	$(BIN)/python -m build --wheel --no-isolation $(ARGS)

clean:
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
