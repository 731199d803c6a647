# Every target builds .venv itself, from the lock. Needs Python 3.11 or newer, git and make.
PYTHON ?= python3
UV_VERSION := 0.13.9
EXTRAS ?= --extra cpu --extra models --extra genai --extra dev
BIN := .venv/bin
# One bound for every BLAS and OpenMP pool: the same work on a busy machine, and no oversubscription under xdist.
THREADS ?= 1
RUN := env OMP_NUM_THREADS=$(THREADS) OPENBLAS_NUM_THREADS=$(THREADS) $(BIN)
SMOLLM2 := models/smollm2-fused
# Two test processes: this is what two cores carry.
JOBS ?= 2

.PHONY: verify test lint fixtures mutate models clean

verify: $(SMOLLM2) ## the main job: built-in fixtures and the real SmolLM2-135M, both backends
	$(RUN)/warmcold verify $$(ls -d fixtures/models/*/) $(SMOLLM2) --backend both --examples 10 --time 60

test: models ## the tests: every law, every leg
	$(RUN)/python -m pytest -n $(JOBS) --dist worksteal --require-legs cpu

lint: .venv/.ready ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fixtures: .venv/.ready ## rebuild the fixtures; says whether the bytes are as before
	$(BIN)/python -m fixtures.build --check || $(BIN)/python -m fixtures.build

mutate: .venv/.ready ## plant every deliberate fault; see which check kills it
	$(RUN)/warmcold mutate --report reports

models: $(SMOLLM2) models/smollm2-decomposed ## the real model, in both formats

models/smollm2-%: .venv/.ready
	$(BIN)/warmcold models get smollm2 --format $* --out $@
	touch $@

.venv/.ready: uv.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	UV_PROJECT_ENVIRONMENT=.venv $(BIN)/uv sync --quiet --frozen --inexact $(EXTRAS)
	touch $@

clean:
	rm -rf .venv models mutants reports/*/ build *.egg-info .mypy_cache .ruff_cache .pytest_cache

.PHONY: mutmut
mutmut: .venv/.ready ## mutate the pure core line by line; each mutant dies by a test or is argued
	rm -rf mutants
	env -u CI $(RUN)/mutmut run --max-children $(JOBS)
	$(BIN)/python -m mutations.mutmut_report
