# Two commands: `make demo` and `make test`. Both work in a fresh clone and install what they need.
PYTHON ?= python3.11
# pip is also called by the builds that it starts, in folders of their own: the path is absolute.
CONSTRAINTS := $(CURDIR)/constraints.txt
VENV := .demo
TOX := .tox/runner/bin/tox
# The environments that have slow tests.
SLOW := core,torch,tensorflow,mxnet,jax,all

.PHONY: help demo test test-slow versions browser bench way zoo ports mutants docs lint clean

help: ## Say what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.installed ## The same call in each framework, on real BERT weights
	$(VENV)/bin/python -m embgrad demo

# Environments are installed side by side, which mostly waits; tests take all cores, and so run one environment after another.
test: $(TOX) browser ## All tests but the slow ones, each in its own environment, in EMBGRAD_TEST_WORKERS processes (2)
	@start=$$(date +%s); $(TOX) run-parallel --parallel auto --notest && \
	  middle=$$(date +%s) && $(TOX) run && end=$$(date +%s) && \
	  echo "make test: $$((middle - start)) seconds of installation, $$((end - middle)) seconds of tests"

test-slow: $(TOX) ## What is slow and seldom breaks, once a release: an hour and more
	EMBGRAD_TEST_SLOW=1 $(TOX) run -e $(SLOW)

versions: $(TOX) ## The tests with the oldest and the newest of each framework, and on each Python: half an hour and more
	$(TOX) run -m versions

browser: ## Chromium, in which the tests open the page: found, or installed where apt-get may
	@for name in "$${EMBGRAD_TEST_BROWSER:-chromium}" chromium chromium-browser google-chrome; do \
	  if command -v "$$name" >/dev/null 2>&1; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
	  echo "The page's tests open it in Chromium, and there is none: install your system's package chromium (apt-get install" >&2; \
	  echo "chromium), or name a browser of that kind, as EMBGRAD_TEST_BROWSER=/path/to/chrome make test" >&2; exit 1; \
	fi

bench: $(TOX) ## Time and memory beside code by hand and other tools, into docs/performance*.md
	$(TOX) run -e benchmarks

way: $(TOX) ## How much code one call goes through in each framework, and how deep the model is called
	$(TOX) run -e way

zoo: $(TOX) ## Every architecture of transformers and keras-hub against gradients by hand, into docs/architectures.md: an hour
	$(TOX) run -e zoo-torch,zoo-tensorflow,zoo-jax

ports: $(TOX) ## The models of keras-hub, and transformers' for Flax and TensorFlow, checked against PyTorch's, into docs/ports.md
	$(TOX) run -e ports

mutants: $(TOX) ## Whether a room's tests notice wrong changes: make mutants ROOM=inputs SEED=1, ROOM=embgrad_torch ENVIRONMENT=torch
	$(TOX) exec -e $(or $(ENVIRONMENT),core) -- python -m tests.mutants --room $(ROOM) --seed $(or $(SEED),0) --seconds $(or $(MOST),inf)

docs: $(TOX) browser ## The documentation as pages, into build/docs
	$(TOX) run -e docs

lint: $(TOX) ## Style and types
	$(TOX) run -e lint

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --no-compile -c $(CONSTRAINTS) "setuptools<81" wheel
	PIP_CONSTRAINT=$(CONSTRAINTS) $(VENV)/bin/python -m pip install --quiet --no-compile -e ".[torch,tensorflow,hub,mxnet,jax,keras,demo]"
	@touch $@

$(TOX):
	$(PYTHON) -m venv .tox/runner
	.tox/runner/bin/python -m pip install --quiet --no-compile "tox>=4"

clean: ## Remove the environments
	rm -rf $(VENV) .tox build
