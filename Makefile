# A fresh machine needs Python 3.10 to 3.13 with pip, and make; everything else is installed here.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: train test test-all lint clean

train: $(VENV)/.installed-easy-vqa ## trains the default model: make train ARGS="seed=1"
	$(BIN)/python -m experiments.train $(ARGS)

test: $(VENV)/.installed-test ## the fast tests: make test ARGS="-k moe"
	$(BIN)/python -m pytest $(ARGS)

test-all: $(VENV)/.installed-test ## slow tests too
	$(BIN)/python -m pytest -m "slow or not slow" $(ARGS)

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
