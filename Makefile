# make demo: install into .venv and walk from a model to a comparison. make test: ruff, mypy, then the test suite.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TYPED := build/typing/lynx_plan

.PHONY: demo test lint types unit samples bench schemas format clean

demo: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy knows no package-dir mapping: show it the package as it is installed, with cli as lynx_plan.cli.
types: $(STAMP)
	rm -rf build/typing && mkdir -p $(TYPED)
	ln -s $(CURDIR)/lynx_plan/* $(CURDIR)/cli $(TYPED)/
	cd build/typing && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache

unit: $(STAMP)
	$(BIN)/pytest

samples: $(STAMP)
	$(BIN)/python sample_profiles/make.py

bench: $(STAMP)
	$(BIN)/python bench/plan_grid.py --no-opt --no-others

schemas: $(STAMP)
	$(BIN)/python schemas/make.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build demo .mypy_cache .ruff_cache .pytest_cache

# Installed once per change of what is to be installed; only constraints.txt decides on versions.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)
