# Everything a person does here, by name. `make serve` is the shortest way to a running stack.

# The python that makes the environment: python3 when it is new enough, else a newer one by name.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PIP_ARGS ?=
ARGS ?=
# Tests wait for processes and clocks, too: more of them than there are cores.
TEST_PROCESSES ?= 8

BIN := $(VENV)/bin
# Tests start hundreds of Python processes, which need not all compile the same.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest
PYTEST_PARALLEL := $(PYTEST) -n $(TEST_PROCESSES)
# What is installed: what serving needs, or that and the tools of developers.
SERVE_STAMP := $(VENV)/.installed-serve
STAMP := $(VENV)/.installed
PACKAGES := jetflock deploy frontend worker detok shared
SOURCES := $(PACKAGES) $(wildcard bench) $(wildcard examples) tests

.PHONY: help serve install dev test test-all test-fast coverage lock test-integration test-gpu test-deep test-newcomer test-clients test-guidellm test-images test-packages docs release lint typecheck format bench bench-plane bench-engine bench-host bench-gpu bench-affinity bench-roles bench-fairness bench-fork bench-scale bench-start bench-autoscale-sim bench-spot chaos screenshots page-libraries wheel clean

help:
	@echo "make serve             run everything on this machine (ARGS='--port 8001' for flags)"
	@echo "make install (or dev)  make $(VENV) with jetflock and its development tools"
	@echo "make test              the tests that need no GPU (ARGS='-k name' for some)"
	@echo "make test-all          those that take longest, too: many servers, long faults"
	@echo "make test-fast         in a minute: those that start neither a broker nor processes, and need no torch"
	@echo "make coverage          which lines the tests run, a number for each role; build/coverage/html has all"
	@echo "make test-integration  those that need a nats-server"
	@echo "make test-gpu          those that need an NVIDIA GPU"
	@echo "make test-deep         random stories of scheduler and cache, over 100,000 steps of each,"
	@echo "                       and of the protocol under simulated faults: 100,000 schedules"
	@echo "make test-clients      SDKs and frameworks of others against a service (docs/clients.md)"
	@echo "make test-guidellm     and GuideLLM, in an environment of its own"
	@echo "make test-newcomer     a clone in an empty home: installs all anew, types what is printed"
	@echo "make lint typecheck    what CI runs beside the tests"
	@echo "make house             the rooms of each role, their floors, and the size of it all;"
	@echo "                       ARGS=--structures writes the lists of docs/structures.md;"
	@echo "                       ARGS=--models the decoders of docs/models.md;"
	@echo "                       ARGS=--lone lists small files with one importer"
	@echo "make lock              write the versions installed here to .ci/constraints.txt, for CI"
	@echo "make format            format, and sort imports"
	@echo "make bench             the benchmarks (bench-plane: the serving plane without a model,"
	@echo "                       bench-engine: the engine without the plane, and its peers)"
	@echo "make bench-host        what a step costs the host, beside the model"
	@echo "make bench-gpu         how near the GPU engine comes to what the hardware can do"
	@echo "make bench-affinity    prefix cache hits of conversations over two workers, and over one"
	@echo "                       (ARGS=--tiers: memory, and a disk behind it)"
	@echo "make bench-roles       time between tokens beside long prompts, with and without roles"
	@echo "make bench-autoscale-sim  the autoscaler's policy on simulated traffic"
	@echo "make bench-spot        what it costs on spot machines, simulated"
	@echo "make chaos             streams under faults, each checked against its undisturbed run"
	@echo "                       (ARGS='--servers 3' for a NATS cluster)"
	@echo "make bench-fairness    waiting times of a tenant with few requests beside one with many"
	@echo "make bench-fork        the first token of a fork, beside the same tokens as a prompt"
	@echo "make bench-scale       how cost grows with streams, workers, partitions, queue and tenants"
	@echo "make bench-start       how long 'make serve' takes until it is ready, and on what"
	@echo "make screenshots       the pictures of the page in docs/images (needs a Chromium)"
	@echo "make page-libraries    the libraries of the page, as their manifest names them"
	@echo "make test-images       the Dockerfile's lines in a clean Debian, without a daemon (as root)"
	@echo "make docs              the site of docs/ in build/docs; a broken link fails"
	@echo "make test-packages     what of Debian's packages the tests use: a browser, faketime"
	@echo "make wheel             build dist/jetflock-*.whl"
	@echo "make release           wheel, source, chart and the images' context in dist/, and what is left to do"
	@echo "make clean             remove what builds and tools left, but no environment"
	@echo "PYTHON=python3.12 chooses the interpreter, PIP_ARGS=... goes to pip, TEST_PROCESSES=1 tests"
	@echo "one after the other"

# The stamps make the second run quick: the installer runs again only when the dependencies changed.
define set-up
@test -n "$(PYTHON)" || { echo "jetflock needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
@$(PYTHON) deploy/environment.py $(1) --venv "$(VENV)" --pip-args="$(PIP_ARGS)"
endef

$(SERVE_STAMP): pyproject.toml
	$(call set-up,serve)
	@touch $@

$(STAMP): pyproject.toml
	$(call set-up,dev)
	@touch $@ $(SERVE_STAMP)

install dev: $(STAMP)

serve: $(SERVE_STAMP)
	@exec $(BIN)/jetflock serve $(ARGS)

test: $(STAMP)
	$(PYTEST_PARALLEL) -m "not gpu and not nightly" $(ARGS)

test-all: $(STAMP)
	$(PYTEST_PARALLEL) -m "not gpu" $(ARGS)

lock: $(STAMP)
	@{ head -n 1 .ci/constraints.txt; \
		$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > .ci/constraints.new
	@mv .ci/constraints.new .ci/constraints.txt

# No broker, no processes, no torch: tests/fast_tests.py. Some wait for a clock: with a process more
# than there are cores, none of these is idle meanwhile.
FAST_PROCESSES ?= $(shell n=$$(nproc); echo $$((n < 7 ? n + 1 : 8)))
test-fast: $(STAMP)
	$(PYTEST) -n $(FAST_PROCESSES) --fast $(ARGS)

test-integration: $(STAMP)
	$(PYTEST_PARALLEL) -m "integration and not gpu" $(ARGS)

test-deep: $(STAMP)
	JETFLOCK_TEST_DEEP=1 $(PYTEST) -s -o timeout=3600 $(ARGS) \
		tests/worker/engine/schedule/test_kv_model.py tests/worker/engine/schedule/test_scheduler_properties.py \
		tests/simulation/test_rules.py
	$(BIN)/python -m tests.simulation --num 100000

# It tells, and judges nothing but the tests: no number is too low.
coverage: $(STAMP)
	@rm -rf build/coverage; mkdir -p build/coverage
	$(subst -m pytest,-m coverage run -m pytest,$(PYTEST_PARALLEL)) -m "not gpu and not nightly" $(ARGS); \
		status=$$?; \
		$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet --directory build/coverage/html; \
		for role in $(PACKAGES); do \
			printf '%-9s %3d %% of its lines\n' $$role "$$($(BIN)/coverage report --include="$$role/*" --format=total)"; \
		done; \
		exit $$status

# Clients of others pin what we do not: an environment of their own, and two of GuideLLM (torch) and of
# the AI SDK (JavaScript), whose tests are skipped where these are not.
CLIENTS_VENV ?= .venv-clients
CLIENTS_STAMP := $(CLIENTS_VENV)/.installed
GUIDELLM_VENV ?= .venv-guidellm
AI_SDK := tests/clients/ai_sdk
$(CLIENTS_STAMP): tests/clients/requirements.txt tests/clients/constraints.txt
	@test -x $(CLIENTS_VENV)/bin/python || $(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) -r $< -c tests/clients/constraints.txt
	@touch $@

$(AI_SDK)/node_modules/.installed: $(AI_SDK)/package.json
	npm install --prefix $(AI_SDK) --no-audit --no-fund
	@touch $@

$(GUIDELLM_VENV)/.installed: tests/clients/guidellm.txt
	@test -x $(GUIDELLM_VENV)/bin/python || $(PYTHON) -m venv $(GUIDELLM_VENV)
	$(GUIDELLM_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) -r $<
	@touch $@

test-newcomer: $(STAMP)
	JETFLOCK_TEST_NEWCOMER=1 $(PYTEST) -s $(ARGS) tests/newcomer

test-images: $(STAMP)
	@command -v debootstrap >/dev/null || { echo "make test-images needs debootstrap: apt-get install debootstrap"; exit 1; }
	JETFLOCK_TEST_IMAGES=$${JETFLOCK_TEST_IMAGES:-1} $(PYTEST) -s $(ARGS) tests/images

test-clients: $(STAMP) $(CLIENTS_STAMP) $(if $(shell command -v npm),$(AI_SDK)/node_modules/.installed)
	JETFLOCK="$(abspath $(BIN))/jetflock" GUIDELLM="$(abspath $(GUIDELLM_VENV))/bin/guidellm" \
		$(CLIENTS_VENV)/bin/python -m pytest -c tests/clients/pytest.ini tests/clients $(ARGS)

# GuideLLM brings torch: several GB with CUDA, 0.9 with PIP_ARGS="--extra-index-url <PyTorch's CPU index>".
test-guidellm: $(GUIDELLM_VENV)/.installed
	@$(MAKE) test-clients ARGS="-k guidellm $(ARGS)"

# Without a browser or faketime their tests are skipped, and fail where CI is set.
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
test-packages:
	@packages=; \
	for each in chromium-headless-shell chromium chromium-browser google-chrome; do \
		command -v $$each >/dev/null && break; \
	done || packages="chromium-headless-shell"; \
	command -v faketime >/dev/null || packages="$$packages faketime"; \
	test -z "$$packages" || { $(SUDO) apt-get update && $(SUDO) apt-get install --yes --no-install-recommends $$packages; }

test-gpu: $(STAMP)
	$(PYTEST) -m gpu $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports

.PHONY: house
house: $(STAMP)
	$(BIN)/python -m bench.house $(ARGS)

typecheck: $(STAMP)
	$(BIN)/mypy $(PACKAGES) bench/chaos $(wildcard examples) tests

format: $(STAMP)
	$(BIN)/ruff check --fix --select I $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench bench-plane bench-engine bench-host bench-gpu bench-affinity bench-roles bench-fairness bench-fork bench-scale bench-start: $(STAMP)
	$(BIN)/python -m $(subst -,.,$@) $(ARGS)

bench-autoscale-sim: $(STAMP)
	$(BIN)/python -m bench.autoscale_sim $(ARGS)

bench-spot: $(STAMP)
	$(BIN)/python -m bench.spot $(ARGS)

chaos: $(STAMP)
	$(BIN)/python -m bench.chaos $(ARGS)

page-libraries: $(STAMP)
	$(BIN)/python -m tests.frontend.page.fetch_libraries
screenshots: $(STAMP)
	$(BIN)/python -m tests.frontend.page.screenshots $(ARGS)

# MkDocs and its theme pin what we do not: an environment of their own.
DOCS_VENV ?= .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed
$(DOCS_STAMP): deploy/docs_site/requirements.txt
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -r $<
	@touch $@

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict $(ARGS)

wheel: $(STAMP)
	$(BIN)/python -m build --wheel --no-isolation $(ARGS)

# Nothing is published from here: what there is to publish, and the checklist of who does it.
release: $(STAMP)
	@test -z "$$(git status --porcelain)" || { echo "commit or remove what git status shows first"; exit 1; }
	@rm -rf dist
	$(BIN)/python -m build --no-isolation $(ARGS)
	tar --sort=name -czf dist/jetflock-chart.tgz -C deploy/helm jetflock
	git archive --format=tar.gz --output=dist/jetflock-image-context.tar.gz HEAD \
		pyproject.toml README.md LICENSE deploy detok frontend jetflock shared worker
	cd dist && sha256sum * > SHA256SUMS
	@cat docs/releasing.md

clean:
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
