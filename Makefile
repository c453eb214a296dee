# `make demo` and `make test` need Python 3.11 or later, on Linux or macOS, and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test bench bench-net chaos fuzz pins interleavings test-hostile docs clean help

help:
	@echo "make demo    train on the i-MNIST stream: 200,000 rounds, under a minute"
	@echo "make test    every check: tests, doctests, types, style, imports, docs"
	@echo "make bench   measure the speed; prints JSON lines"
	@echo "make bench-net  measure the federation over NATS; prints JSON lines"
	@echo "make chaos   kill a federation's processes a hundred times; the result must be the same bytes"
	@echo "make fuzz    throw a million inputs at the decoder, and plays at the conversation"
	@echo "make interleavings  go through everything that can happen in small federations; minutes"
	@echo "make test-hostile   kill parties at bad moments, with every feature on in turn; minutes"
	@echo "make pins    print digests of runs, messages and files that a change of layout must not change"
	@echo "make docs    build the documentation into site/"
	@echo "make clean   remove the virtual environment and everything built"

demo: $(VENV)/run.stamp
	$(BIN)/anabranch run imnist

test: $(VENV)/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

bench: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks.bench

bench-net: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.net

# Such as CHAOS="--seed 7 --in-flight 16".
chaos: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.chaos $(CHAOS)

# Where an input fails, it is kept in fuzz/found: `python fuzz/fuzz_codec.py 1 fuzz/found/crash-...` tries it again.
INPUTS ?= 1000000
PLAYS ?= 20000

fuzz: $(VENV)/fuzz.stamp
	@mkdir -p fuzz/found
	$(BIN)/python fuzz/fuzz_codec.py $(INPUTS) -artifact_prefix=fuzz/found/
	$(BIN)/python fuzz/fuzz_conversations.py $(PLAYS) -artifact_prefix=fuzz/found/

# One alone, such as INTERLEAVINGS="--labels fresh --touched 12,1 --in-flight 3 --losses 1 --most 0".
interleavings: $(VENV)/test.stamp
	$(BIN)/python tests/interleavings.py $(INTERLEAVINGS)

# Such as HOSTILE="--seed 7 --kills 20 --only detect".
test-hostile: $(VENV)/test.stamp
	$(BIN)/python benchmarks/hostile.py $(HOSTILE)

pins: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.pins

docs: $(VENV)/test.stamp
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# A failed installation leaves no stamp, so the next call tries again.
$(VENV)/run.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Anabranch needs Python 3.11 or later; this is `$(PYTHON) --version`. Try: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || { echo "1 of 3: making the virtual environment $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "2 of 3: installing Anabranch and what it needs into $(VENV), 1.2 GB: a minute or some"
	@$(PIP) --editable '.[local]'
	@echo "3 of 3: done. To use the command anabranch in this shell: source $(BIN)/activate"
	@touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp
	@$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/fuzz.stamp: $(VENV)/run.stamp
	@$(PIP) --editable '.[fuzz]'
	@touch $@

$(VENV)/bench.stamp: $(VENV)/run.stamp
	@$(PIP) --editable '.[bench]'
	@touch $@
