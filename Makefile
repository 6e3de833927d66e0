# make drive    closed-loop drive in the embedded world; report in OUT
# make test     set-up, linters, and the whole test suite
# make py38     Python 3.8 with the CARLA 0.9.15 client, for the tests that drive it
# make core312  the core's tests on Python 3.12
# make mutants  proof that the suite can fail: breaks one line at a time
.DEFAULT_GOAL := help
SHELL := /bin/bash

PLANNER ?= nano
ROUTES ?= carla_bridge/routes/demo.xml
LATENCY ?= lockstep
OUT ?= runs/drive-$(notdir $(PLANNER:/=))
ROS_ARGS ?=
BIN := .venv/bin
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help setup drive test lint pytest core312 py38 mutants clean

help:
	@sed -n 's/^# make /make /p' Makefile
	@echo "drive takes   PLANNER=nano|random|none|expert|route-only|constant-velocity|FOLDER  ROUTES=FILE  LATENCY=lockstep|measured|MS  OUT=DIR  ROS_ARGS='-r a:=b'"

setup:
	@tools/setup.sh

drive: setup
	@$(BIN)/wamdiff2 closed-loop --no-bench2drive --planner $(PLANNER) --routes $(ROUTES) --latency $(LATENCY) --out $(OUT) \
	  $(if $(ROS_ARGS),-- --ros-args $(ROS_ARGS))

# Each step takes two cores.
test:
	@tools/setup.sh test
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint core312
	@$(MAKE) --no-print-directory pytest

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy

# Without torch: the tests that need it are skipped there, and say so.
core312:
	@tools/setup.sh core312
	@if [ -x .venv312/bin/pytest ]; then $(ONE_THREAD) .venv312/bin/pytest tests/core -q -n 2 --dist loadfile -rN; fi

# Without a Python 3.8 the tests that drive a CARLA 0.9.15 client are skipped, and say so.
py38: setup
	@tools/setup.sh py38

pytest: setup
	@$(ONE_THREAD) $(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations 10

mutants: setup
	@$(ONE_THREAD) $(BIN)/python tests/mutants.py

clean:
	rm -rf .venv .venv312 .venv38 build install log .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
