# The course's commands. Each sets itself up first: it needs Python 3.11 to 3.14, make, and git.
# An activated environment (conda, venv) is used as it is; otherwise .venv is made here.

PYTHON ?= python3
RUN ?= sample
CORPUS ?=
PRESET ?=
export RUN CORPUS PRESET FOLDER
# threads of torch wait awake for a moment only: beside another busy program, long waits cost half the speed
export GOMP_SPINCOUNT ?= 5000
# images for containers often set this; without compiled modules each notebook and worker takes seconds longer to start
unexport PYTHONDONTWRITEBYTECODE

# conda's `base` is not an environment one has chosen: it only lends its Python to .venv
ifdef VIRTUAL_ENV
  ENV := $(VIRTUAL_ENV)
else ifneq ($(filter-out base,$(CONDA_DEFAULT_ENV)),)
  ENV := $(CONDA_PREFIX)
else
  ENV := .venv
endif
export ENV
PY := "$$ENV/bin/python"

.DEFAULT_GOAL := help
.PHONY: help try demo setup setup-dev run test unit test-all test-faults bench lab site zh serve refresh lint clean

NBVAL := --nbval --nbval-current-env --nbval-sanitize-with tests/nbval.cfg \
	--nbval-cell-timeout 3600 --nbval-kernel-startup-timeout 180
CHANGED := git diff --quiet HEAD -- notebooks 2>/dev/null || \
	echo "You have worked in notebooks/; the published ones are tested: cp -r notebooks mine; git checkout notebooks" >&2
# most tests keep one core busy: two processes share them, whole files each (tests/conftest.py)
SHARED := -n 2 --dist loadscope

help:  ## this list
	@echo "make TARGET [RUN=name] [CORPUS=path] [PRESET=name]"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile | expand -t 15

try:  ## talk to the course's trained model in your browser: nothing is installed, nothing leaves the page
	@$(PYTHON) data/try/serve.py

demo:  ## the same page as a folder of plain files, FOLDER, for any static host
	@$(PYTHON) data/try/serve.py --write "$${FOLDER:-demo}"

run: setup  ## the six notebooks in order, then runs/<RUN>/report.html; CORPUS: your own text; PRESET: presets/<PRESET>.yaml
	@$(PY) -m helpers.run --run "$$RUN" $${CORPUS:+--corpus "$$CORPUS"} $${PRESET:+--preset "$$PRESET"}

# the long training first, alone: it needs both cores
test: setup-dev  ## the committed outputs computed anew, the unit tests, the six notebooks at a tiny scale (14 to 18 minutes)
	@RUNS_DIR="$$(mktemp -d)" && export RUNS_DIR && trap 'rm -rf "$$RUNS_DIR"' EXIT && \
	{ HEADLESS=1 TQDM_DISABLE=1 $(PY) -m pytest notebooks/0[1-6]_*.ipynb $(NBVAL) -q || { $(CHANGED); exit 1; }; } && \
	HEADLESS=1 TQDM_DISABLE=1 $(PY) -m pytest tests -m "not outside and not clock" -q $(SHARED)
	@$(MAKE) site

unit: setup-dev  ## the unit tests that need no long training, no injected fault and no browser (under three minutes)
	@HEADLESS=1 TQDM_DISABLE=1 $(PY) -m pytest tests -m "not slow and not outside and not clock" -q $(SHARED)

test-all: test test-faults  ## also what measures time, JupyterLab in a browser, nginx, each command of the docs, the side doors' outputs (an hour)
	@RUNS_DIR="$$(mktemp -d)" && export RUNS_DIR && trap 'rm -rf "$$RUNS_DIR"' EXIT && \
	HEADLESS=1 TQDM_DISABLE=1 $(PY) -m pytest tests -m "outside or clock" -q && \
	$(PY) -m helpers.run corpus vocab tokenize train && \
	HEADLESS=1 TQDM_DISABLE=1 $(PY) -m pytest notebooks/deeper/*.ipynb $(NBVAL) -q

test-faults: setup-dev  ## every fault of training with its full counts: killed, damaged, full, poisoned (about ten minutes)
	@FAULTS=full HEADLESS=1 TQDM_DISABLE=1 $(PY) -m pytest tests/train/test_checkpoint.py tests/train/test_faults.py -q

bench: setup-dev  ## what benchmarks/README.md reports; RUN must be trained (about an hour, 2 GB of temporary files)
	@$(PY) -m benchmarks.train_speed && $(PY) -m benchmarks.block_speed && \
	$(PY) -m benchmarks.corpus && $(PY) -m benchmarks.generate_speed --run "$$RUN" && $(PY) -m benchmarks.serve_load --run "$$RUN"

# signed: in a notebook that it does not trust, JupyterLab shows no SVG; its question about news is answered in examples/jupyter
lab: setup  ## JupyterLab, opened on the notebooks; LAB="--ip 0.0.0.0 --no-browser": options of its own
	@$(PY) -m nbformat.sign $$(find notebooks -name "*.ipynb" -not -path "*/.ipynb_checkpoints/*") >/dev/null
	@JUPYTER_CONFIG_PATH="$$PWD/examples/jupyter$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" $(PY) -m jupyterlab $$([ "$$(id -u)" = 0 ] && echo --allow-root) --notebook-dir=. $(LAB) notebooks/01_corpus.ipynb

site: setup-dev  ## the course as pages for any static host, in site/html: both languages, with search and the page of `try`
	@rm -rf site && mkdir -p site/source
	@tar cf - --exclude __pycache__ --exclude .ipynb_checkpoints $$(ls | grep -v -x -e runs -e site -e demo) .github | tar xf - -C site/source
	@cp docs/site/index.md site/source/ && $(PY) -m sphinx -q -W --keep-going -c docs/site site/source site/html
	@echo "site/html/index.html"

zh: setup  ## the Chinese notebooks, of the English ones and the catalogues in notebooks/zh/
	@$(PY) notebooks/zh/make.py

serve: setup  ## serve the trained model of RUN over HTTP
	@exec $(PY) -m helpers.serve --run "$$RUN"

refresh: setup  ## the notebooks' outputs, in both languages, and data/try made anew, to be committed
	@RUNS_DIR="$$(mktemp -d)" && export RUNS_DIR && trap 'rm -rf "$$RUNS_DIR"' EXIT && \
	$(PY) -m helpers.run refresh && $(PY) -m helpers.run refresh chat && $(PY) data/try/make.py sample && \
	$(PY) notebooks/zh/make.py && $(PY) -m helpers.run refresh --language zh

lint: setup-dev  ## ruff over modules, tests and notebooks; types of helpers/ by mypy
	@$(PY) -m ruff check . && $(PY) -m ruff format --check --quiet . && $(PY) -m mypy

clean:  ## remove what tools leave behind; .venv and runs/ stay
	@rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
	@find helpers tests notebooks -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

# `setup` installs what a run needs, `setup-dev` also what only tests and benchmarks use. Done again only when
# this folder, pyproject.toml or constraints.txt has changed since it last succeeded.
# --no-compile: Python compiles what it imports, which is a small part of what is installed; it halves the time.
setup:  ## .venv and the libraries, nothing else
	@$(call install,text,chinese-gpt-set-up)

setup-dev:
	@$(call install,$(EVERYTHING),chinese-gpt-set-up-dev)
	@cp "$$ENV/chinese-gpt-set-up-dev" "$$ENV/chinese-gpt-set-up"

EVERYTHING := dev,text,sweep
# install EXTRAS, and leave a file of that name which says what it was done for
define install
wanted=$$(pwd; cat pyproject.toml constraints.txt); \
	if [ "$$wanted" = "$$(cat "$$ENV/$(2)" 2>/dev/null)" ]; then exit 0; fi; set -e; \
	fits='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))'; set -- $(PY); \
	if [ "$$ENV" = .venv ] && ! { $(PY) -c "$$fits" && { $(PY) -m pip --version || command -v uv; }; } >/dev/null 2>&1; \
		then set -- $(PYTHON); fi; \
	"$$@" -c "$$fits" || \
		{ echo "Python 3.11 to 3.14 is needed (for 3.15, pydivsufsort, opencc and rensa have no wheels yet);" \
		  "name one, with no environment activated: make PYTHON=python3.12 …" >&2; exit 1; }; \
	if [ "$$*" != $(PY) ]; then \
		echo "making .venv"; "$$@" -m venv --clear .venv || \
			{ echo "$(PYTHON) cannot make a virtual environment: install its venv module (on Debian and Ubuntu:" \
			  "apt install python3-venv), or activate a conda environment first" >&2; exit 1; }; \
	fi; \
	echo "installing the dependencies into $$ENV (once; some minutes)"; \
	if $(PY) -m pip --version >/dev/null 2>&1; then \
		set -- $(PY) -m pip install --no-compile --disable-pip-version-check; [ -t 1 ] || set -- "$$@" --quiet; \
	elif command -v uv >/dev/null; then set -- uv pip install --python $(PY); \
	else echo "$$ENV has no pip, and there is no uv: $$ENV/bin/python -m ensurepip, then the same command again" >&2; \
		exit 1; \
	fi; \
	"$$@" -e ".[$(1)]" -c constraints.txt; \
	$(PY) -m ipykernel install --sys-prefix --name python3 >/dev/null; \
	printf '%s\n' "$$wanted" > "$$ENV/$(2)"
endef
