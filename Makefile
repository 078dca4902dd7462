# Every target sets up what it needs: Python packages in .venv, the real control
# plane's binaries in ${XDG_CACHE_HOME:-~/.cache}/gpu-remediator. No root needed.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
UV_VERSION := 0.13.9
BIN := .venv/bin
PY := $(BIN)/python
# One stamp for the whole environment: rebuilt when the locked requirements change.
STAMP := .venv/.ready

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): requirements/dev.txt pyproject.toml Makefile
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@command -v $(BIN)/uv >/dev/null || $(BIN)/pip install --quiet uv==$(UV_VERSION)
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(PY) --require-hashes requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(PY) --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: tools
tools: $(STAMP) ## Build or find the real control plane (kube-apiserver, etcd, ...) into the cache
	$(PY) -m testbed.binaries

.PHONY: demo
demo: tools ## The main job on a real API server: a GPU falls off the bus, its node is cordoned, and comes back; a taint, a drain, a storm
	$(PY) -m demo

POLICIES ?= policies
.PHONY: sandbox
sandbox: tools ## A toy cluster to try policies on: POLICIES=folder, CONFIG=RemediatorConfig file, NODES=5
	@$(PY) -m demo.sandbox --policies $(POLICIES) $(if $(CONFIG),--config $(CONFIG)) $(if $(NODES),--nodes $(NODES))

.PHONY: test
test: tools ## All tests, on the real control plane
	$(PY) -m pytest $(ARGS)

.PHONY: fuzz
fuzz: $(STAMP) ## All that reads other people's input, on ten times as much of it, spoilt: CASES=100 for more
	CASES=$${CASES:-10} $(PY) -m pytest tests/property -m fuzz --hypothesis-profile=search --hypothesis-seed=$${FUZZ_SEED:-1} $(ARGS)

.PHONY: lint
lint: $(STAMP) ## Format check, ruff, mypy --strict, layer contracts, YAML
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy remediator node-agent/node_agent testbed demo tests
	$(BIN)/lint-imports
	$(BIN)/yamllint --strict policies deploy examples

.PHONY: fmt
fmt: $(STAMP) ## Format the code and apply ruff's safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench-cordon
bench-cordon: tools ## Log line to unschedulable node, against the floor of bare PATCHes
	$(PY) -m tests.bench.cordon

.PHONY: bench-storm
bench-storm: tools ## 1,000 nodes turn bad within a second: cordons/s against bare PATCHes
	$(PY) -m tests.bench.storm

.PHONY: bench-drain
bench-drain: tools ## What a drain adds to the time of its pods, and evictions/s against a bare loop
	$(PY) -m tests.bench.drain

.PHONY: bench-memory
bench-memory: tools ## Controller memory and heartbeat cost with 5,000 nodes
	$(PY) -m tests.bench.memory

.PHONY: bench-scale
bench-scale: tools ## 5,000 nodes of which 50 fail within a minute; memory with 20,000
	$(PY) -m tests.bench.scale

.PHONY: bench-decide
bench-decide: .venv/.ready ## Deciding alone: one node under 100 policies, and all of 5,000 nodes
	$(PY) -m tests.bench.decide

.PHONY: bench-agent
bench-agent: tools ## Agent memory, idle CPU and log-storm throughput
	$(PY) -m tests.bench.agent

.PHONY: bench-scrape
bench-scrape: tools ## A scrape of the agent: alone, fifty at once, and while an NVML call hangs
	$(PY) -m tests.bench.scrape

.PHONY: bench-webhook
bench-webhook: tools ## Alerts/s that the webhook accepts, and whether any is lost with its leader
	$(PY) -m tests.bench.webhook

.PHONY: bench-handover
bench-handover: tools ## SIGTERM to the leader until the other replica has cordoned
	$(PY) -m tests.bench.handover

# An environment of its own: mutmut's many libraries are no part of development.
build/mutate/.ready: requirements/dev.txt requirements/mutate.txt $(STAMP)
	$(PYTHON) -m venv build/mutate/venv
	$(BIN)/uv pip install --quiet --python build/mutate/venv/bin/python --require-hashes -r requirements/dev.txt -r requirements/mutate.txt
	@touch $@

.PHONY: mutate
mutate: build/mutate/.ready ## Does a test notice each small change? MODULES="guards/*.py calm.py" of remediator/decide
	build/mutate/venv/bin/python -m tests.bench.mutate $(MODULES)

.PHONY: requirements
requirements: ## Lock the dependencies again, with hashes (needs the network)
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --custom-compile-command 'make requirements' --all-extras --group dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --custom-compile-command 'make requirements' --extra controller pyproject.toml -c requirements/dev.txt -o requirements/controller.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --custom-compile-command 'make requirements' --extra agent pyproject.toml -c requirements/dev.txt -o requirements/agent.txt
	echo 'mutmut==3.8.1' | $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --custom-compile-command 'make requirements' - -c requirements/dev.txt -o requirements/mutate.txt
	echo hatchling | $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --custom-compile-command 'make requirements' - -c requirements/dev.txt -o requirements/build.txt
