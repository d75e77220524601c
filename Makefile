# A fresh machine needs Python 3.10 to 3.13 with pip, and make; everything else is installed here.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Two workers with one thread each; the tests of a file stay together, as they share what they train,
# and files keep their order: those of whole runs come first, and no worker is left with them alone.
PYTEST = python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# An environment of its own, of Python 3.10 to 3.12: torch-directml needs torch 2.4.1.
DIRECTML = .venv-directml

.PHONY: train test test-all test-directml lint clean

train: $(VENV)/.installed-easy-vqa ## trains the default model: make train ARGS="seed=1"
	$(BIN)/python -m experiments.train $(ARGS)

test: $(VENV)/.installed-test ## the fast tests: make test ARGS="-k moe"
	OMP_NUM_THREADS=1 $(BIN)/$(PYTEST) $(ARGS)

test-all: $(VENV)/.installed-test ## slow tests too
	OMP_NUM_THREADS=1 $(BIN)/$(PYTEST) -m "slow or not slow" $(ARGS)

# Outside Windows and WSL2 the plugin loads with the stubs that it ships, in a process by itself.
test-directml: $(DIRECTML)/.installed ## on torch 2.4.1: the plugin, the audit, all tests
	LD_LIBRARY_PATH=$$($(DIRECTML)/bin/python -c "$$FIND_STUBS") LOAD_DIRECTML=1 \
		$(DIRECTML)/bin/python -m pytest tests/hardware/test_torch_directml.py
	$(DIRECTML)/bin/python -m experiments.audit $(AUDITED)
	OMP_NUM_THREADS=1 $(DIRECTML)/bin/$(PYTEST) $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

clean: ## removes the environment, not the outputs
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One marker per set of extras; an edited pyproject.toml installs again.
$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@

$(DIRECTML)/.installed: pyproject.toml
	test -x $(DIRECTML)/bin/python || $(PYTHON) -m venv $(DIRECTML)
	$(DIRECTML)/bin/python -m pip install --quiet --editable ".[directml,test]"
	touch $@

AUDITED = experiment=v6_max hardware=rx480
define FIND_STUBS
import importlib.util as util
print(util.find_spec('torch_directml').submodule_search_locations[0])
endef
export FIND_STUBS
