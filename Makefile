# Every target builds .venv itself, from the lock. Needs Python 3.11 or newer, git and make.
PYTHON ?= python3
UV_VERSION := 0.13.9
EXTRAS ?= --extra cpu --extra models --extra dev
BIN := .venv/bin
# One thread per BLAS/OpenMP pool: the same figures on a busy machine, and no oversubscription under xdist.
export OMP_NUM_THREADS ?= 2
export OPENBLAS_NUM_THREADS ?= 2

.PHONY: verify test lint fixtures mutate models clean

.venv/.ready: uv.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	UV_PROJECT_ENVIRONMENT=.venv $(BIN)/uv sync --quiet --frozen --inexact $(EXTRAS)
	touch $@
