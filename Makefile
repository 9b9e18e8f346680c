# `make train` and `make test` need the clone, make and Python >= 3.11; the rest goes into .venv:
# for `make train` what training needs, for the tests the packages of the extra `test` as well.

PYTHON ?= python3
SEED ?= 1
TORCH ?=
ARGS ?=
JOBS ?= 2

comma := ,
VENV := .venv
PY := $(VENV)/bin/python
PIP := PYTHONWARNINGS=ignore PIP_PROGRESS_BAR=off $(PY) -m pip --quiet --disable-pip-version-check
DEBUG := $(filter-out 0,$(FASTPPO_DEBUG))
STAMP := $(VENV)/installed$(if $(DEBUG),-debug)
LOG := build/install.log
FETCHING := build/fetching
WHAT := -e . -c constraints.txt
# The requirements of an extra, one per line. Installing `.[extra]` would build the kernels again.
EXTRA := $(PY) -c 'import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"] \
    ["optional-dependencies"][sys.argv[1]], sep="\n")'
FETCHED := $(if $(TORCH),pypi.org and download.pytorch.org,pypi.org)
OR_SAY := || { echo "  fix: see the lines above; if it is the network: $(FETCHED) must be in" \
    "reach (HTTPS_PROXY); then make again" >&2; $(if $(TORCH),echo "  or:  make train$(comma) which" \
    "takes PyTorch from pypi.org" >&2;) exit 1; }
SANE := build/sanitize
PAGES := build/pages
TOUCH_C := $(addprefix tests/,machine workers compiled gpu core/test_rollout.py networks/test_recurrent.py \
    networks/test_normaliser.py networks/test_mlp.py vector \
    promises/test_interrupts.py)
# Machines that tests/pretend_machine.py knows, and the tests of what depends on the machine.
MACHINES := "cores-1 no-bf16 no-terminal" "cores-2 no-compiler" "cores-16 bf16"
ASK := $(addprefix tests/,trainer terminal cli machine/test_arena.py machine/test_installation.py \
    envs/test_step_time.py vector/test_vector_source.py runs/test_system_facts.py \
    compiled/test_shared_minibatches.py networks/test_precision.py workers/test_workers.py)

ifeq ($(TORCH),cpu)
  INSTALL := $(PY) -m uv pip install --quiet --python $(PY) --torch-backend=cpu $(WHAT)
else ifeq ($(TORCH),)
  INSTALL := $(PIP) --log $(LOG) install $(WHAT)
else
  $(error TORCH=$(TORCH) is unknown; fix: make TORCH=cpu, or leave it out)
endif

.PHONY: help train test full test-gpu slow test-faults test-machines test-packages check docs sanitize bench clean
.DEFAULT_GOAL := help

help:
	@echo "make train    train LunarLander-v3 on the CPU     (SEED=1, ARGS=\"--env_name=CartPole-v1\")"
	@echo "make test     run the fast tests                  (JOBS=2, ARGS=\"-k gae\")"
	@echo "make full     run the tests for which a newcomer need not wait"
	@echo "make test-gpu run the tests of a GPU on a pretended one, which the CPU computes"
	@echo "make slow     run the learning tests and long matrices"
	@echo "make test-faults  run kills, hangs and damaged files by the hundred"
	@echo "make test-machines  run the tests of what depends on the machine on three pretended ones"
	@echo "make test-packages  train on some light packages of environments, in build/packages"
	@echo "make check    run the linter, the type checker and the tests of the code's form"
	@echo "make docs     write the pages as a website into build/site"
	@echo "make sanitize run the tests of the C under the address and undefined sanitizers"
	@echo "make bench    measure README's speed table: figures, limits, other systems"
	@echo "make clean    remove everything that make creates, except runs/"
	@echo
	@echo "make train installs what training needs, make test the packages of the tests as well."
	@echo "The first call sets up .venv: PYTHON=python3.12 chooses its Python, TORCH=cpu takes"
	@echo "PyTorch's CPU build (200 MB instead of about 3 GB), FASTPPO_DEBUG=1 builds with checks."

train: $(STAMP)
	@$(PY) main.py --seed=$(SEED) --video $(ARGS)

test: $(VENV)/test
	@echo "tests     they are collected first, without a word for up to a minute"
	@$(PY) -m pytest -q -n $(JOBS) $(ARGS)

full: $(VENV)/test
	@$(PY) -m pytest -q -n $(JOBS) -m "full and not slow and not faults" $(ARGS)

test-gpu: $(VENV)/test
	@PRETEND_GPU=1 $(PY) -m pytest -q -n $(JOBS) -m "cuda and not slow and not faults" $(ARGS)

slow: $(VENV)/test
	@$(PY) -m pytest -q -n $(JOBS) -m slow $(ARGS)

test-faults: $(VENV)/test
	@$(PY) -m pytest -q -n $(JOBS) -m faults $(ARGS)

test-machines: $(VENV)/test
	@for machine in $(MACHINES); do \
	    echo "machine   $$machine"; \
	    PRETEND_MACHINE="$$machine" $(PY) -m pytest -q -n $(JOBS) $(ASK) $(ARGS) || exit 1; \
	done

# In a folder of their own, so that the tests of what is missing stay as they are.
build/packages/installed: tests/packages.txt | $(VENV)/test
	@rm -rf build/packages
	@$(PIP) install --no-deps --target build/packages -r tests/packages.txt $(OR_SAY)
	@touch $@

test-packages: build/packages/installed
	@PYTHONPATH=$(CURDIR)/build/packages $(PY) -m pytest -q -m packages $(ARGS)

check: $(VENV)/test $(VENV)/dev
	@$(PY) -m ruff check fastppo tests bench docs examples setup.py main.py
	@$(PY) -m pyright --pythonpath $(PY)
	@$(PY) -m pytest -q -n $(JOBS) tests/house $(ARGS)

# The site has the layout of the repository, so that the pages' links work in both. The kind of a
# Python block is removed, because Python-Markdown takes only the language. A folder to which a page
# may link becomes a list of its files. Not --quiet: mkdocs would not count warnings.
docs: $(VENV)/docs
	@rm -rf $(PAGES) && mkdir -p $(PAGES)
	@tar -c --exclude=__pycache__ --exclude='*.so' README.md CONTRIBUTING.md CHANGELOG.md LICENSE \
	    Dockerfile docs examples bench fastppo csrc | tar -x -C $(PAGES)
	@perl -pi -e 's/^(```python) \w+$$/$$1/' $$(find $(PAGES) -name '*.md')
	@cd $(PAGES) && for folder in examples fastppo/*/ csrc/*/; do \
	    ls $$folder | sed 's/.*/- [&](&)/' >$$folder/index.md; done
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "site      build/site/index.html"

# A separate build, beside the usual one. libasan must be loaded first, and libstdc++ before torch
# throws. Leaks are not detected, because Python itself has some. A SIGSEGV or SIGBUS that a test
# causes ends its process as usual.
sanitize: $(VENV)/test
	@rm -rf $(SANE) && mkdir -p $(SANE)
	@$(PIP) install "cython>=3.1" "setuptools>=77"
	@FASTPPO_SANITIZE=address,undefined $(PY) setup.py -q build --build-base $(SANE)/temp \
	    --build-lib $(SANE)/lib >$(SANE)/build.log 2>&1 || { cat $(SANE)/build.log; exit 1; }
	@preload=$$(ldd $(SANE)/lib/fastppo/_kernels.*.so | awk '/libasan|libstdc/ {print $$3}'); \
	if [ -z "$$preload" ]; then \
	    echo "error: the sanitizers' libraries are missing; see $(SANE)/build.log" >&2; \
	    echo "  fix: sudo apt install gcc libasan8 libubsan1" >&2; exit 1; \
	fi; \
	PYTHONPATH=$(CURDIR)/$(SANE)/lib ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0 \
	    LD_PRELOAD="$$(echo $$preload)" UBSAN_OPTIONS=print_stacktrace=1 \
	    $(PY) -P -m pytest -q --capture=sys -n $(JOBS) $(TOUCH_C) $(ARGS)

bench: $(STAMP)
	@$(PIP) install -e ".[bench-peers,mujoco]" -c constraints.txt
	@$(PY) bench/table.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info fastppo/_kernels.*.so fastppo/_cells.*.so
	rm -rf .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is installed last, so it is the target: a venv without it was interrupted.
$(VENV)/bin/pip:
	@rm -rf $(VENV)
	@if $(PYTHON) -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then \
	    echo "venv      $(VENV), $$($(PYTHON) --version)"; \
	    $(PYTHON) -m venv $(VENV); \
	elif command -v uv >/dev/null; then \
	    echo "venv      $(VENV), made by uv ($(PYTHON) is older than 3.11 or lacks venv)"; \
	    uv venv --quiet --seed --python '>=3.11' $(VENV); \
	elif $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "error: $(PYTHON) cannot make a virtual environment: its venv package is missing" >&2; \
	    echo "  fix: sudo apt install python3-venv" >&2; exit 1; \
	else \
	    echo "error: $(PYTHON) is missing or older than Python 3.11" >&2; \
	    echo "  fix: make PYTHON=python3.12 ...   (or any newer one that is installed)" >&2; exit 1; \
	fi

$(VENV)/test $(VENV)/dev $(VENV)/docs: $(VENV)/%: $(STAMP)
	@mkdir -p build
	@echo "install   the packages of the extra $*"
	@$(EXTRA) $* >build/$*.txt
	@$(PIP) install -r build/$*.txt -c constraints.txt $(OR_SAY)
	@touch $@

# The stamp is removed first and written last, so that an interrupted install is repeated.
$(STAMP): setup.py pyproject.toml constraints.txt $(wildcard csrc/*/*) | $(VENV)/bin/pip
	@rm -f $(VENV)/installed*
	@mkdir -p build && rm -f $(LOG)
	@echo "install   fastppo and its dependencies (minutes the first time, mostly for PyTorch)"
ifeq ($(TORCH),cpu)
	@$(PIP) install uv $(OR_SAY)
endif
	@rm -rf $(FETCHING) && mkdir -p $(FETCHING)
	@(while sleep 30 >/dev/null 2>&1; do echo "          still installing," \
	    "$$(du -cm $(VENV) $(FETCHING) | tail -n 1 | cut -f 1) MB so far"; \
	    done) & watch=$$!; trap "kill $$watch; rm -rf $(FETCHING)" EXIT; \
	    TMPDIR=$(CURDIR)/$(FETCHING) $(INSTALL) $(OR_SAY)
	@if $(PY) -c 'import fastppo._cells, fastppo._kernels' 2>/dev/null; then \
	    echo "kernels   compiled"; \
	else \
	    echo "kernels   not compiled: fastppo runs in one process, slower"; \
	    sed -nE 's/^[^ ]+ +(.*(error:|building extension).*)/  \1/p' $(LOG) 2>/dev/null \
	        | cut -c 1-100 | head -n 4; \
	    echo "  fix: sudo apt install build-essential python3-dev, touch setup.py, make again"; \
	fi
	@touch $@
