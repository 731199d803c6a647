# Every target builds .venv itself, from the lock. Needs Python 3.11 or newer, git and make.
PYTHON ?= python3
UV_VERSION := 0.13.9
EXTRAS ?= --extra cpu --extra models --extra genai --extra dev
BIN := .venv/bin
# One bound for every BLAS and OpenMP pool: the same work on a busy machine, and no oversubscription under xdist.
THREADS ?= 1
RUN := env OMP_NUM_THREADS=$(THREADS) OPENBLAS_NUM_THREADS=$(THREADS) $(BIN)
# The same test tools as in the lock.
TESTED := pytest==9.2.0 hypothesis==6.170.17 onnxruntime==1.32.0
SMOLLM2 := models/smollm2-fused
# Two test processes: this is what two cores carry.
JOBS ?= 2

.PHONY: verify test wheel soak subjects transformers llama lint fixtures mutate models clean

verify: $(SMOLLM2) ## the main job: built-in fixtures and the real SmolLM2-135M, both backends
	$(RUN)/warmcold verify $$(ls -d fixtures/models/*/) $(SMOLLM2) --backend both --examples 10 --time 60

test: models ## the tests: every law, every leg; the subjects that need an environment of their own are in `make subjects`
	$(RUN)/python -m pytest -n $(JOBS) --dist worksteal --require-legs cpu -m "not transformers and not llama_cpp"

wheel: .venv/.ready ## build the wheel, install it outside the tree, try it as a stranger would
	$(BIN)/python scripts/check_wheel

# Fresh examples of every property test, round after round; see CONTRIBUTING.md.
MINUTES ?= 10
soak: .venv/.ready ## the state machines and property tests on fresh randomness, for MINUTES; a finding comes with its seed
	$(RUN)/python scripts/soak laws --minutes $(MINUTES)

subjects: transformers llama ## the tests of the subjects that need an environment of their own (llama.cpp is compiled: ten minutes)

transformers: .venv-transformers/.ready ## the transformers subject, with torch
	env OMP_NUM_THREADS=$(THREADS) .venv-transformers/bin/python -m pytest -m transformers tests/subjects

llama: .venv-llama/.ready ## the llama-cpp-python subject
	env OMP_NUM_THREADS=$(THREADS) .venv-llama/bin/python -m pytest -m llama_cpp tests/subjects

lint: .venv/.ready ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fixtures: .venv/.ready ## rebuild the fixtures; says whether the bytes are as before
	$(BIN)/python -m warmcold.fixtures.build --check || $(BIN)/python -m warmcold.fixtures.build

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

# pip, not uv: where a machine offers a CPU build of torch beside the index, pip takes it.
.venv-transformers/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-transformers
	.venv-transformers/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 $(TESTED) -e .[cpu]
	touch $@

.venv-llama/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-llama
	.venv-llama/bin/python -m pip install --quiet --disable-pip-version-check llama-cpp-python[server]==0.3.36 gguf==0.19.0 $(TESTED) -e .[cpu]
	touch $@

clean:
	rm -rf .venv .venv-transformers .venv-llama models mutants reports/*/ build *.egg-info .mypy_cache .ruff_cache .pytest_cache

.PHONY: mutmut
mutmut: build/mutmut ## mutate the pure core line by line; each mutant dies by a test or is argued
	cd build/mutmut && env -u CI OMP_NUM_THREADS=$(THREADS) OPENBLAS_NUM_THREADS=$(THREADS) ../../$(BIN)/mutmut run --max-children $(JOBS) $(MUTANTS)
	$(BIN)/python -m warmcold.mutations.mutmut_report

# mutmut does not follow links, leaves decorated functions alone, and keeps verdicts of an older source: a fresh tree of plain
# folders each time, without the one decorator that does nothing.
.PHONY: build/mutmut
build/mutmut: .venv/.ready
	rm -rf $@
	mkdir -p $@
	cp -RL src fixtures tests pyproject.toml $@
	find $@ -name __pycache__ -prune -exec rm -rf {} +
	find $@/src -name '*.py' -exec sed -i.old '/^ *@override$$/d' {} +
	find $@/src -name '*.old' -exec rm -f {} +
