# `make serve` and `make test` install what is missing, into .venv, and say so.

MODEL ?=
PORT ?= 8000
GRPC_PORT ?= 50051
FRONTENDS ?= 1
ARGS ?=
TESTS ?= tests
# Processes that share the tests, file by file, those that start services first.
WORKERS ?= 2
ONLY ?=

# The Python that .venv is made with; unset, the first that will do.
PYTHON ?=
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3.13 python3)
WILL_DO := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# $(call install,serve) or $(call install,test)
define install
	@for python in $(CANDIDATES); do \
	  if $$python -c '$(WILL_DO)' 2>/dev/null; then exec $$python tools/install.py $(1); fi; \
	done; \
	echo "error: none of these is a Python 3.11 to 3.13 that has venv: $(CANDIDATES)"; \
	echo "       (on Debian and Ubuntu: apt install python3 python3-venv)"; \
	exit 1
endef

.DEFAULT_GOAL := help
.PHONY: help serve install test test-all bench chaos lint format proto

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve:  ## serve MODEL= on PORT= and GRPC_PORT= with FRONTENDS=, and more flags in ARGS=
	$(call install,serve)
	@exec $(BIN)/tt-serve $(MODEL) --port $(PORT) --grpc-port $(GRPC_PORT) --frontends $(FRONTENDS) $(ARGS)

install:  ## everything, for development
	$(call install,test)

test: install  ## the tests, or those of TESTS=
	$(PYTEST) -m "not slow" $(TESTS)

test-all: install  ## the slow tests too
	$(PYTEST) $(TESTS)

bench: install  ## measure, all or ONLY=name; writes bench.json
	$(BIN)/python -m bench $(ONLY)

chaos: install  ## do harm on the sim mesh, all or ONLY=name; writes chaos.json
	$(BIN)/python -m tests.chaos $(ONLY)

lint: install  ## format, rules, types, import contracts, protocol, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(BIN)/python protos/generate.py --check

format: install  ## rewrite the code as `make lint` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: install  ## write ttserve/v1 from protos/
	$(BIN)/python protos/generate.py
