# Every target makes what it needs by itself; Python 3.11+ and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLAIN := $(VENV)/.plain
READY := $(VENV)/.ready
BENCH := .venv-bench
BENCH_READY := $(BENCH)/.ready

.PHONY: demo explore test quick lint types unit quick-unit coverage browser docs bench evidence results clean

# The package as users install it: enough for the demo.
$(PLAIN): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trustsets needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable .
	touch $@

# The same with all extras and the tools of development.
$(READY): $(PLAIN)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

# The peers live in an environment of their own: they never touch the product's.
$(BENCH_READY): pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	PIP_CONSTRAINT=constraints.txt $(BENCH)/bin/python -m pip install --quiet --editable . -r benchmarks/requirements.txt
	@# TorchCP's torchsort must compile here, for the CPU (a CUDA compiler on the path would confuse it);
	@# without it the tables leave TorchCP out.
	-$(BENCH)/bin/python -m pip install --quiet setuptools wheel && \
	 PATH=/usr/bin:/bin $(BENCH)/bin/python -m pip install --quiet --no-build-isolation torchsort && \
	 $(BENCH)/bin/python -m pip install --quiet --no-deps torchcp==1.2.1 && \
	 $(BENCH)/bin/python -m pip install --quiet torch_geometric transformers pillow tqdm
	touch $@

test: lint types unit

# A cross-section of the laws of each room, for the moments between edits. mypy checks the files that changed since
# its last run and those that use them; tests marked slow are left out.
quick: $(READY)
	$(MAKE) --jobs=2 --output-sync=target quick-unit lint types

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# Two processes on two cores: more OpenMP threads than cores would wait for each other.
unit: $(READY) browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=2 --dist=worksteal

quick-unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow and not statistical" --numprocesses=2 --dist=worksteal

# Branches of the library that tests reach in their own process. Compiled functions cannot be
# watched, so the tests of the engine run a second time without compilation.
coverage: $(READY) browser
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m coverage run -m pytest -q -m "not statistical" tests/engine
	$(BIN)/python -m coverage run --append -m pytest -q
	$(BIN)/python -m coverage report

# Tests of the report page need Chromium. Root on Debian gets it here; elsewhere those tests
# are skipped and say why (with CI=true they fail instead).
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	 { [ "$$(id -u)" = 0 ] && command -v apt-get && apt-get update -qq && apt-get install -y -qq chromium; } || \
	 echo "No Chromium: tests of the report page will be skipped. Install the package chromium to run them."

# The site, with every example run; opens from build/site/index.html, without a server.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

demo: $(PLAIN)
	$(BIN)/trustsets demo

# The live page, on the demo's data; TASK=digits for another task.
TASK ?= real
explore: $(READY)
	$(BIN)/trustsets explore --task $(TASK)

bench: $(BENCH_READY)
	for script in benchmarks/*.py; do $(BENCH)/bin/python $$script || exit 1; done

# The benchmark of conditional coverage: under an hour on two cores, and it goes on where it was
# stopped. SOURCE=DIR takes the data from local copies; SETS="digits letters" runs some of them.
evidence: $(BENCH_READY)
	$(BENCH)/bin/python -m pytest -q --override-ini=addopts= tests/benchmarks
	$(BENCH)/bin/python benchmarks/coverage/evidence.py --memory $(if $(SOURCE),--source $(SOURCE)) $(if $(SETS),--sets $(SETS))
	$(BENCH)/bin/python benchmarks/coverage/coverage_page.py
	$(BENCH)/bin/python studies/headline_figure.py

# The pages of docs/results, remade with the shipped default and stamped; DATA is a folder of saved
# outputs for the pages that need one.
results: $(READY)
	$(BIN)/python studies/results.py $(if $(DATA),--data $(DATA))

clean:
	rm -rf $(VENV) $(BENCH) build dist .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks studies -name __pycache__ -type d -prune -exec rm -rf {} +
