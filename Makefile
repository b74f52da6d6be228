# Each target sets up .venv by itself: Python 3.11+ and the package registries are all it needs.
#
#   make demo     sentence search and digits, from trained models to bundles and back
#   make demo-generate  a Llama's prefill and decode in one bundle, many sessions
#   make demo-embed     texts of all lengths through one bundle, beside PyTorch and ONNX Runtime
#   make demo-distributed  training in JAX and a Llama in PyTorch on four processes
#   make test     the tests        (PYTEST="-k wire" narrows them; with GIRIH_THOROUGH=1 each case
#                 runs on every engine, level and architecture that shares it with others)
#   make test-cpus  compiled programs on emulated CPUs: aarch64, x86-64 without AVX and AVX-512
#   make lint     ruff and pyright
#   make versions   oldest and newest dependencies, in environments of their own
#   make bench    the zoo beside torch, XLA:CPU and ONNX Runtime; results in benchmarks/results/

PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,$(shell \
  command -v $(name) >/dev/null && $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  2>/dev/null && echo $(name))))
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST ?=

# Tests start hundreds of processes that import girih: what Python compiled once is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-generate demo-embed demo-distributed test test-cpus lint bench versions specs clean

demo: $(READY)
	$(BIN)/python examples/demo/run.py

demo-generate: $(READY)
	$(BIN)/python examples/generate/run.py

demo-embed: $(READY)
	$(BIN)/python examples/embed/run.py

demo-distributed: $(READY)
	$(BIN)/python examples/sharded/run.py

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST)

# QEMU and what it runs are fetched into $(VENV) where they are not there; see tests/emulated/.
test-cpus: $(READY)
	$(BIN)/python -m girih.tests.emulated

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --threads 2

# Oldest and newest dependencies, every Python that is here; the table stands in docs/installing.md.
versions: $(READY)
	$(BIN)/python benchmarks/versions.py

bench: $(READY)
	$(BIN)/python benchmarks/zoo.py
	$(BIN)/python benchmarks/call_overhead.py
	$(BIN)/python benchmarks/load_time.py
	$(BIN)/python benchmarks/construct.py

# Generated protobuf code and pages are checked in; the tests compare them with what this gives.
specs: $(READY)
	$(BIN)/python specs/generate.py

# The pins go in first and girih itself without dependencies, so that nothing moves a pin.
# The link lets static tools resolve `import girih`: the package is this folder itself.
$(READY): requirements-dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "girih needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --no-build-isolation -e .
	mkdir -p $(VENV)/source && ln -sfn ../.. $(VENV)/source/girih
	touch $@

clean:
	rm -rf $(VENV) build dist girih.egg-info
