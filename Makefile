# The README's two commands are `make demo` and `make test`; each does all its own set-up.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Debian packages: the nodes of the lab (qemu, mmdebstrap, extlinux), its registry and repository, its docker engine;
# a browser, in which the page about benchmarks is looked at.
PACKAGES := python3-venv openssh-client rsync iproute2 iptables procps kmod zstd openssl ca-certificates \
  qemu-system-x86 qemu-utils mmdebstrap e2fsprogs fdisk extlinux syslinux-common \
  docker.io docker-registry skopeo dpkg-dev apt-utils gnupg git \
  chromium
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# Bytecode is kept, whatever the environment says: tests start the command and its stand-ins a few hundred times.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help demo test hostile check setup packages lint types layers bandit audit lock sbom dist unit unit-first-half unit-second-half yaml ansible-lint test-containers test-machines roles baremetal jobs jobs-on-the-lab jobs-beside launch recorded recorded-jobs batch drift chaos faults partitions exhaustive bench bench-look bench-nodes bench-jobs bench-revisions docs clean

help:
	@echo "make demo       two virtual machines become a cluster and run an MPI job"
	@echo "make test       what CI runs: check, roles, hostile, jobs, and the short tests of baremetal"
	@echo "make check      lint, types, layers, bandit, audit, unit tests (several minutes)"
	@echo "make audit      known vulnerabilities of the locked packages"
	@echo "make lock       renew requirements.lock and requirements-dev.lock (UPGRADE=1: newest versions)"
	@echo "make dist       wheel, source archive, SBOM and checksums in dist/"
	@echo "make hostile    every verb with malicious answers of nodes"
	@echo "make roles      every role on systemd containers (Molecule)"
	@echo "make jobs       the container lab from bare nodes to jobs"
	@echo "make launch     jobs on two SIMULATED machines of eight GPUs, by Open MPI 4 and 5, MPICH and PyTorch"
	@echo "make recorded   compare with recorded outputs and reference documents in RECORDED_DATA (not in the repository)"
	@echo "make batch      two hundred jobs of two operators on four SIMULATED machines of eight GPUs"
	@echo "make drift      every change by other hands, alone, and nodes that are half dead (hours)"
	@echo "make chaos      faults at random moments of an apply"
	@echo "make faults     faults at random moments of batch jobs, operators who are killed"
	@echo "make partitions a node is cut off before, during and after each job verb (one to two hours)"
	@echo "make exhaustive the choice of GPUs, compared with trying every one"
	@echo "make baremetal  virtual machines: kernel modules, power cuts, reboots, then the whole way"
	@echo "make bench      what a look at 10, 100 and 1000 SIMULATED nodes costs, and apply on 8 container nodes"
	@echo "make bench-jobs how long a batch job takes to start, and its list and output to show, beside ssh and docker"
	@echo "make bench-revisions BEFORE=CHECKOUT  this checkout and another one, in turns"
	@echo "make docs       write inventories/example and docs/reference/reasons.md anew"
	@echo "make clean      remove the virtual environment"

demo: setup
	$(BIN)/provision demo

test: setup
	$(MAKE) check
	$(MAKE) -j2 test-containers test-machines

# The two halves run side by side: much of either is waiting, or one emulated core. Each line says whose it is.
test-containers:
	set -o pipefail; $(BIN)/pytest -v --no-header $(SLOWEST) -p no:cacheprovider tests/molecule | sed -u 's/^/containers: /'
	$(MAKE) jobs-on-the-lab

test-machines:
	set -o pipefail; $(BIN)/pytest -v --no-header $(SLOWEST) -p no:cacheprovider tests/baremetal -m "not long" | sed -u 's/^/machines: /'
	$(MAKE) hostile
	$(MAKE) jobs-beside

SLOWEST := --durations=40 --durations-min=2
# Tests that share one lab run one after the other; those that need none, or have a lab of their own, run beside them.
BESIDE := $(patsubst %,tests/integration/test_%.py,adopt bench_page container_lab engine_run first_steps inventory lab_services \
  left_out lock_holder many_nodes new_role node_locks release role_modules submitters without_python) -m "not long"
ON_THE_LAB := tests/integration $(addprefix --ignore=,$(filter tests/%,$(BESIDE))) -m "not long"

# Set-up: Debian packages that are missing, and a virtual environment of exactly the pinned versions.
setup: packages $(VENV)/.done

packages:
	@missing=$$(for p in $(PACKAGES); do dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || echo $$p; done); \
	if [ -n "$$missing" ]; then echo "installing Debian packages:" $$missing; \
	  $(SUDO) apt-get -o DPkg::Lock::Timeout=600 -qq update && \
	  $(SUDO) env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -o DPkg::Lock::Timeout=600 -qq install -y --no-install-recommends $$missing >/dev/null; fi

# pip refuses a package whose hash is not in the file. The file is complete (--no-deps: pip has nothing to resolve), and
# --no-build-isolation builds the project with the locked setuptools.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
$(VENV)/.done: pyproject.toml requirements-dev.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --no-deps --require-hashes --only-binary :all: -r requirements-dev.lock
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@# With all cores, and of Ansible's 15,000 modules those that are used: pip would take a minute more for it.
	$(BIN)/python -m compileall -qq -j 0 -x 'ansible_collections/(?!ansible/|community/docker/)' $(VENV)/lib || true
	touch $@

check: setup
	@# More places than cores, because unit tests wait for a fifth of their time: what is nice works meanwhile.
	$(MAKE) -j4 --output-sync=target unit-first-half unit-second-half ansible-lint types bandit audit yaml lint layers

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	nice $(BIN)/mypy

layers:
	$(BIN)/lint-imports

# All severities and levels of confidence; pyproject.toml has the rules that are left out, and why.
bandit:
	@# It warns of every expression in a line with an exception that the rule does not apply to.
	nice $(BIN)/bandit --quiet --configfile pyproject.toml --recursive provision roles tools \
	  2> >(grep -v "but no failed test on file" >&2)

# Known vulnerabilities of the locked packages, from OSV or AUDIT_OSV_URL. AUDIT_STRICT=1 fails where OSV cannot be reached.
audit:
	$(BIN)/python tools/audit.py requirements-dev.lock

# Versions and hashes of all packages, from pyproject.toml. Pins stay as they are; UPGRADE=1 takes the newest versions.
LOCK := UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-annotate --no-emit-package colorama --no-emit-package pywin32 $(if $(UPGRADE),--upgrade)
lock: setup
	$(LOCK) pyproject.toml -o requirements.lock
	$(LOCK) pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock
	$(LOCK) tests/benchmarks/requirements.in -o tests/benchmarks/requirements.lock

# The packages that provision needs at run time, in CycloneDX's format. The same lock file gives the same bytes.
SBOM ?= build/provision.cdx.json
sbom: setup
	mkdir -p $(dir $(SBOM))
	$(BIN)/python -W ignore -m cyclonedx_py requirements requirements.lock --pyproject pyproject.toml --output-reproducible --no-validate \
	  --output-file $(SBOM)

# A release of the last commit: wheel, source archive, SBOM and their checksums. The same commit gives the same bytes.
DIST ?= dist
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: setup
	rm -rf $(DIST) && mkdir -p $(DIST)/source
	git archive HEAD | tar -x -C $(DIST)/source
	$(abspath $(BIN))/uv build --quiet --no-build-isolation --python $(abspath $(BIN))/python --out-dir $(DIST) $(DIST)/source
	$(MAKE) -C $(DIST)/source -o setup sbom VENV=$(abspath $(VENV)) SBOM=$(abspath $(DIST))/provision.cdx.json
	rm -rf $(DIST)/source $(DIST)/.gitignore
	@# setuptools writes the time and the user into the source archive.
	cd $(DIST) && for archive in *.tar.gz; do mkdir source && tar -xzf $$archive -C source && \
	  tar --sort=name --mtime=@$$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX \
	    -C source -c $${archive%.tar.gz} | gzip -9n > $$archive && rm -r source; done
	cd $(DIST) && sha256sum * > .sums && mv .sums SHA256SUMS

# In two halves of about the same length, for `make check` to run side by side.
SECOND_HALF := $(addprefix tests/unit/,benchmarks cli connectors inventory jobs lab test_bandwidth.py test_supply_chain.py)
unit: unit-first-half unit-second-half

unit-first-half:
	$(BIN)/pytest -q -p no:cacheprovider -m "not long" tests/unit tests/roles $(addprefix --ignore=,$(SECOND_HALF))

unit-second-half:
	$(BIN)/pytest -q -p no:cacheprovider -m "not long" $(SECOND_HALF)

# Every set of free GPUs on three nodes, compared with trying everything (half an hour).
exhaustive: setup
	$(BIN)/pytest -v -p no:cacheprovider -m long tests/unit

yaml:
	$(BIN)/yamllint --strict .

# File by file: given folders, it has Ansible check the syntax of each role once more, which site.yml has as a whole.
PLAYBOOKS := $(filter-out playbooks/nodes.yml playbooks/containers.yml,$(wildcard playbooks/*.yml))
ansible-lint:
	ANSIBLE_ROLES_PATH=roles nice $(BIN)/ansible-lint --offline -q $(PLAYBOOKS) \
	  $$(find inventories/example roles tests/molecule -name '.*' -prune -o \( -name '*.yml' -o -name '*.j2' \) -print)

roles: setup
	$(BIN)/pytest -q -p no:cacheprovider tests/molecule

jobs: setup
	$(MAKE) -j2 jobs-on-the-lab jobs-beside

jobs-on-the-lab:
	set -o pipefail; $(BIN)/pytest -v --no-header $(SLOWEST) -p no:cacheprovider $(ON_THE_LAB) | sed -u 's/^/containers: /'

jobs-beside:
	set -o pipefail; $(BIN)/pytest -v --no-header $(SLOWEST) -p no:cacheprovider $(BESIDE) | sed -u 's/^/beside: /'

# Every verb with malicious answers of nodes, 500 each, in one process.
hostile:
	set -o pipefail; $(BIN)/pytest -v --no-header $(SLOWEST) -p no:cacheprovider tests/hostile | sed -u 's/^/hostile: /'

# What takes too long for `make test`: each drift alone, a hundred plans, nodes that are half dead, a mirror that fails, where
# secrets are, the way back.
drift: setup
	$(BIN)/pytest -v -p no:cacheprovider $(addprefix tests/integration/test_, \
	  drift.py gray_faults.py mirrors.py plan_diff.py secrets.py site_reset.py)

# MPICH, PyTorch and Open MPI 5 come from the Debian mirror (half a gigabyte for each node), TensorBoard from PyPI.
launch: setup
	$(BIN)/pytest -v -p no:cacheprovider $(addprefix tests/integration/test_, launch.py tensorboard.py) -m long

# Comparison with outputs recorded on real machines and with the reference documents, which are not part of the
# repository. RECORDED_DATA is the folder that contains data/ and reference/; the default is ../shared.
recorded: setup
	$(BIN)/pytest -q -p no:cacheprovider tests/recorded

# The reference documents' own command lines, on the container lab.
recorded-jobs: setup
	$(BIN)/pytest -v -p no:cacheprovider tests/integration/test_documents.py -m recorded

# Two hundred batch jobs (half an hour on two processors).
batch: setup
	$(BIN)/pytest -v -p no:cacheprovider tests/integration/test_many_jobs.py -m long

# CHAOS_SEED=N repeats a run.
chaos: setup
	$(BIN)/pytest -v -s -p no:cacheprovider tests/integration/test_chaos.py -m long

# PARTITIONS_SEED=N repeats a run; PARTITIONS_CASES=N draws so many random cases (50). A part of it: PARTITIONS="-k running".
partitions: setup
	$(BIN)/pytest -v -s -p no:cacheprovider tests/integration/test_partitions.py -m long $(PARTITIONS)

# JOB_FAULTS_SEED=N repeats a run (forty minutes on two processors).
faults: setup
	$(BIN)/pytest -v -s -p no:cacheprovider tests/integration/test_job_faults.py -m long

baremetal: setup
	$(BIN)/pytest -q -p no:cacheprovider tests/baremetal

# tests/benchmarks/README.md says how to read them; pyinfra has an environment of its own.
BENCH_VENV := build/bench/venv

bench: bench-look bench-nodes

bench-look: setup
	$(BIN)/python -m tests.benchmarks.many_nodes $(BENCH_LOOK)

bench-nodes: setup $(BENCH_VENV)/.done
	$(BIN)/python -m tests.benchmarks.container_nodes --pyinfra $(BENCH_VENV)/bin/pyinfra $(BENCH_NODES)

# BEFORE=CHECKOUT: another checkout with a .venv of its own.
bench-revisions: setup
	$(BIN)/python -m tests.benchmarks.revisions $(BEFORE) $(BENCH_REVISIONS)

bench-jobs: setup
	$(BIN)/python -m tests.benchmarks.batch_jobs $(BENCH_JOBS)

$(BENCH_VENV)/.done: tests/benchmarks/requirements.lock
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/benchmarks/requirements.lock
	touch $@

docs: $(VENV)/.done
	$(BIN)/python -m provision.inventory.example > inventories/example/group_vars/all.yml
	$(BIN)/python -m provision.report.reasons_page > docs/reference/reasons.md

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
