# kvferry: the verbs. `make` lists them; the first one on a fresh machine does all that it needs.
#
# Settings: ONLY=redis.Client of `make native`, the native tests whose names begin so; TEST_WORKERS=6
# processes of Python tests; FUZZ_SECONDS=60 for each fuzzer; SIM_SECONDS=60 of new schedules, or
# SEED= of one; SOAK_SECONDS=600 of chaos, and with STAGE= and SEED= one certain run of it; BENCH=
# more options of bench and bench-engines, say "--only get_"; WERROR=ON makes compiler warnings errors.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONDONTWRITEBYTECODE  # tests start many processes, which would compile the same anew

BIN := .venv/bin
JOBS := $(shell nproc)
CXX_FILES = $(shell find native bindings -name '*.[ch]pp')
FUZZ_SECONDS ?= 60
SIM_SECONDS ?= 60
SOAK_SECONDS ?= 600
SOAK_THREADS ?= 8
WERROR ?= OFF
# Tests wait more than they compute, for servers, clocks and faults.
TEST_WORKERS ?= $(shell n=$$((3 * $(JOBS))); echo $$((n < 16 ? n : 16)))
PYTEST = $(BIN)/pytest --numprocesses $(TEST_WORKERS) --dist worksteal
LANE = PYTHONPATH=tools $(BIN)/python -m engine_lane
# Older ThreadSanitizer runtimes need the kernel's address randomization off.
FIXED := $(shell setarch -R true 2>/dev/null && echo setarch -R)
PRESET = $(FIXED) $(BIN)/cmake --preset $(1) -DCMAKE_COMPILE_WARNING_AS_ERROR=$(WERROR) \
  --log-level=WARNING && $(FIXED) $(BIN)/cmake --build --preset $(1) \
  $(if $(ONLY),--target test_$(firstword $(subst ., ,$(ONLY)))) && \
  $(FIXED) $(BIN)/ctest --preset $(1) --parallel $(TEST_WORKERS) $(if $(ONLY),--tests-regex '^$(ONLY)')

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full check native asan tsan fuzz sim conformance soak bench docs format stub \
  clean engine test-engines test-gpu bench-engines gpu-report gpu-pack

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 10

setup:  ## system packages (as root), .venv, the native extension; quick when nothing changed
	@tools/setup.sh

demo: setup  ## a cache at work, in your terminal
	@$(BIN)/kvferry demo

test: native  ## native tests, then those in Python that say most in minutes
	@$(PYTEST) -m "not full"

test-full: test  ## all tests but `make soak` and `make test-engines`
	@$(PYTEST) -m full

check: setup  ## format, lint, types, layers, stub, tables: all of them, then the verdict
	@failed=0; \
	$(BIN)/ruff format --check || failed=1; \
	$(BIN)/ruff check || failed=1; \
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES) || failed=1; \
	$(BIN)/mypy || failed=1; \
	$(BIN)/python tools/tidy.py || failed=1; \
	$(BIN)/python tools/stub.py --check || failed=1; \
	$(BIN)/python tools/settings.py --check || failed=1; \
	exit $$failed

native: setup  ## native tests of what the extension is made of
	@$(call PRESET,release)

asan: setup  ## native tests under AddressSanitizer and UBSan
	@$(call PRESET,asan)

tsan: setup  ## native tests under ThreadSanitizer
	@$(call PRESET,tsan)

fuzz: setup  ## each libFuzzer program for FUZZ_SECONDS (needs clang)
	@tools/fuzz.sh $(FUZZ_SECONDS)

sim: setup  ## schedules of client and servers on a clock of their own, for SIM_SECONDS
	@$(BIN)/cmake --build --preset release --target kvferry-sim && build/release/kvferry-sim \
	  $(if $(SEED),--seed $(SEED),--seconds $(SIM_SECONDS) --from $(shell date +%s)000000)

engine: setup  ## vLLM for CPUs with kvferry, and a small model, in build/engines
	@$(LANE) vllm-0.32.0 --models tiny

test-engines: setup  ## all tests on real engines, which are installed into build/engines
	@$(BIN)/pytest -m "engines or not engines" tests/engines

test-gpu: setup  ## tests that take a GPU; KVFERRY_GPU_PYTHON names an interpreter with torch
	@$(BIN)/pytest -m gpu -rs tests/engines

bench-engines: setup  ## what a cache is worth to vLLM; build/bench-engines.{json,png}
	@mkdir -p build && $(BIN)/kvferry bench engines --python "$$($(LANE) vllm-0.32.0)" \
	  --model "$$($(LANE) --models small)" --one-process --tier-spec cpu_tiering:CpuTieringSpec \
	  --module-path tests/engines/plugins \
	  $$(rival=$$($(LANE) vllm-lmcache) && echo "--rival-python $$rival") \
	  --json build/bench-engines.json --plot build/bench-engines.png $(BENCH)

gpu-report: setup  ## the report of a GPU machine, here with a small model; docs/guides/gpu-report.md
	@PYTHONPATH=tools $(BIN)/python -m gpu_lane report --profile cpu \
	  --python "$$($(LANE) vllm-0.32.0)" --out build/gpu-report $(BENCH)

gpu-pack: setup  ## what travels to a GPU machine, into .gpu; PYTHON= is a Python 3.12
	@PYTHONPATH=tools $(BIN)/python -m gpu_lane pack --python "$${PYTHON:-python3.12}"

conformance: setup  ## suites of others on a node: VALKEY= and RESP= name checkouts of them
	@PYTHONPATH=tests $(BIN)/python -m foreign_suites $(if $(VALKEY),--valkey $(VALKEY)) \
	  $(if $(RESP),--resp $(RESP))

soak: setup  ## servers killed, ways cut, every answer checked, for SOAK_SECONDS
	@PYTHONPATH=tests $(BIN)/python -X faulthandler -W error -m chaos --seconds $(SOAK_SECONDS) \
	  --threads $(SOAK_THREADS) $(if $(STAGE),--stage $(STAGE)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(PURE),--pure)
	@$(if $(STAGE)$(SEED),,$(BIN)/pytest -m soak)

bench: setup  ## this project's promises, measured; results in build/bench.json
	@$(BIN)/python -m benchmarks --json build/bench.json $(BENCH)

docs: setup  ## links and examples of every Markdown page
	@$(BIN)/python tools/pages.py

format: setup  ## rewrite C++ and Python in the house format
	@$(BIN)/ruff format && $(BIN)/ruff check --fix && $(BIN)/clang-format -i $(CXX_FILES)

stub: setup  ## rewrite what is made from code: _native.pyi, the tables of settings in the guides
	@$(BIN)/python tools/stub.py && $(BIN)/python tools/settings.py

clean:  ## remove what was built; .venv stays
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
