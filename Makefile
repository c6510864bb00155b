# Every target sets up what it needs and is quick the second time. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
UV     ?= uv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet
PYTEST := $(BIN)/python -m pytest -rsfE --durations=10 --durations-min=1
GOAL   := $(or $(firstword $(MAKECMDGOALS)),demo)
CHECKED = $(wildcard pgqueue cli tests alembic benchmarks examples)

# A person's own pip settings must not leak in: --user, for one, makes pip refuse every virtual environment.
export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_USER := 0

.PHONY: help demo test lint stress mutants bench wheel lock clean venv runtime dev

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{ printf "  make %-8s%s\n", $$1, $$2 }' Makefile

demo: runtime  ## the queue on real input: server, schema, workers, totals checked (DEMO="--workers 2 --kill-one")
	@$(BIN)/pgqueue demo $(DEMO)

# Heavy tests measure or load the machine, so they come alone after the rest. Exit 5 is "none selected": fine for one
# of the two when ARGS selects, never for both.
test: dev  ## the whole suite on a real server (ARGS="-k claim")
	@$(PYTEST) -n 2 --dist worksteal -m "not heavy and not stress" $(ARGS); first=$$?; \
	test $$first = 0 || { test $$first = 5 && test -n '$(subst ','\'',$(ARGS))'; } || exit $$first; \
	$(PYTEST) -m heavy $(ARGS); second=$$?; \
	test $$second = 0 || { test $$second = 5 && test $$first = 0; } || exit $$second

lint: dev  ## ruff, mypy --strict, the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict $(CHECKED)
	@$(BIN)/lint-imports

# Asked first whether there are any: pytest's closing line of an empty run would read as "nothing was tested".
stress: dev  ## minutes of load and of killed workers
	@$(BIN)/python -m pytest -qq --collect-only -m stress $(ARGS) >/dev/null 2>&1; \
	if test $$? = 5; then echo "no stress tests yet" >&2; else $(PYTEST) -m stress $(ARGS); fi

mutants: dev  ## bugs planted one by one, each of which the suite must find (ARGS="01 07")
	@$(BIN)/python -m tests.mutants.run $(ARGS)

bench: runtime  ## rates beside the floor of the same run (BENCH=drain)
	@$(BIN)/python -m benchmarks $(or $(BENCH),drain)

# The wheel is built from the sdist: setuptools keeps what it built in build/, and a deleted module would come back.
wheel: dev  ## sdist and wheel in dist/
	@rm -rf dist && $(BIN)/python -m build --no-isolation

# One resolution for every Python and platform that we serve; hashes, and no word of where the files were found.
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --extra embedded pyproject.toml
lock:  ## resolve requirements/*.lock again (ARGS=--upgrade for newer versions)
	@command -v $(UV) >/dev/null || { echo "make lock needs uv. Install it, or say where it is: make lock UV=/path/to/uv" >&2; exit 1; }
	@$(COMPILE) --group editable $(ARGS) -o requirements/runtime.lock
	@$(COMPILE) --group build --group test --group lint $(ARGS) -c requirements/runtime.lock -o requirements/dev.lock

clean:  ## remove what make made
	@if test -e $(VENV)/.made; then rm -rf $(VENV); fi
	@rm -rf build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find $(CHECKED) -name __pycache__ -prune -exec rm -rf {} +

# .made says which Python finished this environment, and where: after PYTHON=…, an upgrade, a move or a copy of the
# checkout it is made anew (its scripts name absolute paths). A folder without .made is somebody else's, never removed.
venv:
	@made="$$($(PYTHON) -c 'import sys; print(sys.version.split()[0] + " " + getattr(sys, "base_prefix", ""))' 2>/dev/null) $$(pwd)"; \
	if test -x $(BIN)/python && test "$$made" = "$$(cat $(VENV)/.made 2>/dev/null)"; then exit 0; fi; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  has="$$($(PYTHON) -V 2>&1)" && has="$(PYTHON) is $$has" || { \
	    has="$(PYTHON) was not found"; command -v $(PYTHON) >/dev/null && has="$(PYTHON) cannot be run"; }; \
	  try="install one (Debian, Ubuntu: apt install python3; macOS: brew install python)"; \
	  for name in python3.11 python3.12 python3.13; do \
	    if $$name -c pass 2>/dev/null; then try="make $(GOAL) PYTHON=$$name"; fi; done; \
	  echo "pgqueue needs Python 3.11 or newer, and $$has. Try: $$try" >&2; exit 1; }; \
	test -w . || { echo "This folder cannot be written: $$(pwd). Copy it to one of yours and run make there." >&2; exit 1; }; \
	if test -e $(VENV) && ! test -e $(VENV)/.made; then \
	  echo "$(VENV) was not made by this Makefile. Remove it, or name another: make $(GOAL) VENV=.venv-pgqueue" >&2; exit 1; fi; \
	base="$$($(PYTHON) -c 'import sys; print(sys._base_executable)')"; \
	rm -rf $(VENV) && mkdir -p $(VENV) && echo unfinished >$(VENV)/.made || exit 1; \
	said="$$("$$base" -m venv $(VENV) 2>&1)" || { rm -rf $(VENV); \
	  case "$$said" in \
	    *ensurepip*|*"No module named venv"*) \
	      echo "This Python cannot make virtual environments. Debian, Ubuntu: apt install python3-venv; then: make $(GOAL)" >&2;; \
	    *) echo "$$said" >&2;; esac; exit 1; }; \
	echo "$$made" >$(VENV)/.made

# The locks are compared by content, so switching branches installs only what differs. What pip says is shown only when
# it fails: it warns, at length, of a HOME that cannot hold its cache and of indexes that know only some of the names.
INSTALL = test -w . || { echo "This folder cannot be written: $$(pwd). Copy it to one of yours and run make there." >&2; exit 1; }; \
	echo "installing the locked dependencies into $(VENV), once" >&2; rm -f $(VENV)/.runtime; \
	said="$$({ $(PIP) install --require-hashes -r $(1) && $(PIP) install --no-deps --no-build-isolation -e .; } 2>&1)" || { \
	  echo "$$said" >&2; exit 1; }; \
	cat pyproject.toml requirements/runtime.lock >$(VENV)/.runtime

runtime: venv
	@cat pyproject.toml requirements/runtime.lock | cmp -s - $(VENV)/.runtime || { $(call INSTALL,requirements/runtime.lock); }

dev: venv
	@{ cmp -s requirements/dev.lock $(VENV)/.dev && \
	  cat pyproject.toml requirements/runtime.lock | cmp -s - $(VENV)/.runtime; } || { \
	  $(call INSTALL,requirements/dev.lock) && cp requirements/dev.lock $(VENV)/.dev; }
