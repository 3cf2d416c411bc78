# The README's two commands are `make demo` and `make test`; each does all its own set-up.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Debian packages: the nodes of the lab (qemu, mmdebstrap, extlinux), its registry and repository, its docker engine;
# a browser, in which the page about benchmarks is looked at.
PACKAGES := python3-venv openssh-client rsync iproute2 iptables procps kmod zstd openssl ca-certificates \
  qemu-system-x86 qemu-utils mmdebstrap e2fsprogs fdisk extlinux syslinux-common \
  docker.io docker-registry skopeo dpkg-dev apt-utils gnupg git rpm createrepo-c \
  chromium
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# Bytecode is kept, whatever the environment says: tests start the command and its stand-ins a few hundred times.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help demo test hostile check setup packages lint types layers bandit audit lock sbom dist release unit unit-1 unit-2 unit-3 unit-4 unit-5 unit-oldest yaml ansible-lint test-containers test-machines roles baremetal jobs jobs-on-the-lab jobs-beside launch recorded recorded-jobs batch drift tutorials systems package-managers slurm slurm-load driver chaos faults partitions exhaustive bench bench-look bench-nodes bench-jobs bench-images bench-placement bench-launch bench-revisions bench-gate bench-record docs site site-check clean

help:
	@echo "make demo       two virtual machines become a cluster and run an MPI job"
	@echo "make test       what CI runs: check, and the short tests of roles, hostile, jobs and baremetal (35 to 60 minutes)"
	@echo "make check      lint, types, layers, bandit, audit, documentation, unit tests (several minutes)"
	@echo "make audit      known vulnerabilities of the locked packages"
	@echo "make lock       renew requirements.lock and requirements-dev.lock (UPGRADE=1: newest versions)"
	@echo "make release    wheel, source archive, Ansible collection, SBOM and checksums in dist/, tested in a container"
	@echo "make dist       the same without the test"
	@echo "make hostile    every verb with malicious answers of nodes"
	@echo "make roles      every role on systemd containers (Molecule)"
	@echo "make jobs       the container lab from bare nodes to jobs (more than an hour)"
	@echo "make launch     jobs on two SIMULATED machines of eight GPUs, by Open MPI 4 and 5, MPICH and PyTorch"
	@echo "make recorded   compare with recorded outputs and reference documents in RECORDED_DATA (not in the repository)"
	@echo "make batch      two hundred jobs of two operators on four SIMULATED machines of eight GPUs"
	@echo "make drift      every change by other hands, alone, and nodes that are half dead (hours)"
	@echo "make tutorials  the tutorials' commands and the installed wheel, on the container lab"
	@echo "make unit-oldest tests of what runs on nodes, under the oldest Python of this machine (3.6, if it has one)"
	@echo "make systems    a cluster of Debian, Ubuntu and Enterprise Linux (the last two SIMULATED), and every role on Ubuntu"
	@echo "make package-managers  locks, interruptions, signatures, holds and resets, by the same tests for apt and dnf"
	@echo "make driver     NVIDIA driver (Debian's) and RDMA stack (SIMULATED) on container nodes: built, carried, reset (half an hour)"
	@echo "make slurm      a Slurm cluster of four nodes, there and back, on Debian 12 and 13, and its jobs"
	@echo "make slurm-load 500 jobs of three users on Slurm, random faults, and the documented features (hours)"
	@echo "make chaos      faults at random moments of an apply"
	@echo "make faults     faults at random moments of batch jobs, operators who are killed"
	@echo "make partitions a node is cut off before, during and after each job verb (one to two hours)"
	@echo "make exhaustive the choice of GPUs, compared with trying every one"
	@echo "make baremetal  virtual machines: kernel modules, power cuts, reboots, then the whole way"
	@echo "make bench      what a look at 10, 100 and 1000 SIMULATED nodes costs, and apply on 4 container nodes"
	@echo "make bench-gate the same, and compare with the recorded runs; bench-record records the last runs"
	@echo "make bench-jobs how long a batch job takes to start, and its list and output to show, beside ssh and docker"
	@echo "make bench-images an image on 1, 2 and 4 container nodes, by plain pulls and by copies between them (SIMULATED links)"
	@echo "make bench-placement traffic between leaf switches, beside random nodes and Slurm; time of a choice from 10,000 nodes"
	@echo "make bench-launch the start of a batch job on up to 512 SIMULATED nodes: controller, and supervisor of the leader"
	@echo "make bench-revisions BEFORE=CHECKOUT  this checkout and another one, in turns"
	@echo "make docs       write the generated files anew, and build the documentation in build/site"
	@echo "make site-check every page of the documentation in Chromium: layout, links, search, accessibility"
	@echo "make clean      remove the virtual environment"

demo: setup
	$(BIN)/provision demo

test: setup
	$(MAKE) check
	$(MAKE) -j2 test-containers test-machines

# The two halves run side by side: much of either is waiting, or one emulated core. Each line says whose it is.
test-containers:
	set -o pipefail; $(BIN)/pytest -v --no-header $(SLOWEST) -p no:cacheprovider tests/molecule $(SHORT) | sed -u 's/^/containers: /'
	$(MAKE) jobs-on-the-lab JOBS="$(SHORT)"

test-machines:
	set -o pipefail; $(BIN)/pytest -v --no-header $(SLOWEST) -p no:cacheprovider tests/baremetal $(SHORT) | sed -u 's/^/machines: /'
	$(MAKE) hostile HOSTILE_ANSWERS=20
	$(MAKE) jobs-beside JOBS="$(SHORT)"

# `make test` runs neither tests marked `slow` nor tests marked `long`.
SHORT := -m 'not long and not slow'
JOBS := -m 'not long'
SLOWEST := --durations=40 --durations-min=2
# RECORD=1 writes which roles were tested on which systems, if all tests of a run succeed, into docs/data/systems.json and its page.
RECORD_SYSTEMS := $(if $(RECORD),--record-systems)
# Tests that share one lab run one after the other; those that need none, or have a lab of their own, run beside them.
BESIDE := $(patsubst %,tests/integration/test_%.py,adopt bench_page container_lab engine_run first_steps image_peers installed inventory lab_services \
  left_out lock_holder many_nodes more_systems new_role node_locks package_managers release rescue role_modules slurm_role submitters systems tutorial without_python)
ON_THE_LAB := tests/integration $(addprefix --ignore=,$(BESIDE))

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
	$(MAKE) -j6 --output-sync=target unit-3 unit-4 unit-5 unit-1 unit-2 ansible-lint site types bandit audit yaml lint layers

# What runs on nodes uses nothing newer than Python 3.6. `# novermin` marks a newer function whose absence the code handles.
ON_NODES := provision/node provision/facts/os_release.py provision/facts/kernel_module_failures.py provision/report/package_remedies.py \
  provision/report/rescue_remedies.py provision/report/kernel_remedies.py \
  $(wildcard roles/*/library roles/*/module_utils) \
  $(addprefix provision/lab/files/,make_gpu_devices.py mlnx_qos.py nvidia_container_cli.py nvidia_container_runtime.py nvidia_container_runtime_hook.py nvidia_ctk.py nvidia_smi.py)
lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/vermin --quiet --no-tips --violations --eval-annotations --target=3.6- $(ON_NODES)

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
  --no-emit-index-url --no-emit-find-links --no-annotate --no-emit-package pywin32 $(if $(UPGRADE),--upgrade)
lock: setup
	$(LOCK) --all-extras --no-emit-package colorama pyproject.toml -o requirements.lock
	@# The theme of the documentation imports colorama on Linux, too.
	$(LOCK) --all-extras pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock
	$(LOCK) --no-emit-package colorama tests/benchmarks/requirements.in -o tests/benchmarks/requirements.lock

# The packages that provision needs at run time, in CycloneDX's format. The same lock file gives the same bytes.
SBOM ?= build/provision.cdx.json
sbom: setup
	mkdir -p $(dir $(SBOM))
	$(BIN)/python -W ignore -m cyclonedx_py requirements requirements.lock --pyproject pyproject.toml --output-reproducible --no-validate \
	  --output-file $(SBOM)

# A release of the last commit: wheel, source archive, Ansible collection, SBOM and checksums. The same commit gives the
# same bytes. `make release` installs and uses it in a clean container, too.
DIST ?= dist
release: dist
	$(BIN)/python -m tools.release_smoke $(DIST)

dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: setup
	rm -rf $(DIST) && mkdir -p $(DIST)/source
	umask 022 && git archive HEAD | tar -x --no-same-permissions -C $(DIST)/source
	$(abspath $(BIN))/uv build --quiet --no-build-isolation --python $(abspath $(BIN))/python --out-dir $(DIST) $(DIST)/source
	$(MAKE) -C $(DIST)/source -o setup sbom VENV=$(abspath $(VENV)) SBOM=$(abspath $(DIST))/provision.cdx.json
	$(BIN)/python $(DIST)/source/tools/collection.py $(abspath $(DIST))
	rm -rf $(DIST)/source $(DIST)/.gitignore
	@# setuptools writes the time and the user into the source archive.
	cd $(DIST) && for archive in gpu_provision-*.tar.gz; do mkdir source && tar -xzf $$archive -C source && \
	  tar --sort=name --mtime=@$$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX \
	    -C source -c $${archive%.tar.gz} | gzip -9n > $$archive && rm -r source; done
	cd $(DIST) && sha256sum * > .sums && mv .sums SHA256SUMS

# In five parts, for `make check` to run side by side: all but the first wait most of the time for processes.
UNIT_2 := $(addprefix tests/unit/,benchmarks cli inventory test_bandwidth.py test_supply_chain.py)
UNIT_3 := $(addprefix tests/unit/jobs/test_,direct_engine.py engine_contract.py job_supervisor.py)
UNIT_4 := tests/unit/jobs
UNIT_5 := $(addprefix tests/unit/,connectors lab jobs/test_code.py jobs/test_forged_jobs.py)
unit: unit-1 unit-2 unit-3 unit-4 unit-5

unit-1:
	$(BIN)/pytest -q -p no:cacheprovider -m "not long" tests/unit tests/roles $(addprefix --ignore=,$(UNIT_2) $(UNIT_4) $(UNIT_5))

unit-2:
	$(BIN)/pytest -q -p no:cacheprovider -m "not long" $(UNIT_2)

unit-3:
	$(BIN)/pytest -q -p no:cacheprovider -m "not long" $(UNIT_3)

unit-4:
	$(BIN)/pytest -q -p no:cacheprovider -m "not long" $(UNIT_4) $(addprefix --ignore=,$(UNIT_3) $(UNIT_5))

unit-5:
	$(BIN)/pytest -q -p no:cacheprovider -m "not long" $(UNIT_5)

# Tests of what runs on nodes, under the oldest Python of this machine. Programs that stand in for others keep the Python of the tests.
unit-oldest: export NODE_PYTHON = $(shell $(BIN)/python -c 'from tests.support.interpreters import OLDEST; print(OLDEST)')
unit-oldest: setup
	$(NODE_PYTHON) --version
	$(BIN)/pytest -q -p no:cacheprovider -m "not long" tests/unit/jobs $(addprefix tests/unit/,test_light_modules.py test_node_interpreters.py facts)

# Every set of free GPUs on three nodes, compared with trying everything (half an hour).
exhaustive: setup
	$(BIN)/pytest -v -p no:cacheprovider -m long tests/unit --ignore=tests/unit/jobs/test_engine_contract.py

yaml:
	$(BIN)/yamllint --strict .

# File by file: given folders, it has Ansible check the syntax of each role once more, which site.yml has as a whole.
PLAYBOOKS := $(filter-out playbooks/nodes.yml playbooks/containers.yml,$(wildcard playbooks/*.yml))
ansible-lint:
	ANSIBLE_ROLES_PATH=roles nice $(BIN)/ansible-lint --offline -q $(PLAYBOOKS) \
	  $$(find inventories roles tests/molecule -name '.*' -prune -o \( -name '*.yml' -o -name '*.j2' \) -print)

roles: setup
	$(BIN)/pytest -q -p no:cacheprovider tests/molecule $(RECORD_SYSTEMS)

jobs: setup
	$(MAKE) -j2 jobs-on-the-lab jobs-beside

jobs-on-the-lab:
	set -o pipefail; $(BIN)/pytest -v --no-header $(SLOWEST) -p no:cacheprovider $(ON_THE_LAB) $(JOBS) | sed -u 's/^/containers: /'

jobs-beside:
	set -o pipefail; $(BIN)/pytest -v --no-header $(SLOWEST) -p no:cacheprovider $(BESIDE) $(JOBS) | sed -u 's/^/beside: /'

# Every verb with malicious answers of nodes, in one process: 500 each, 20 each in `make test`.
hostile: export HOSTILE_ANSWERS ?= 500
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

# The blocks of the tutorials, and the wheel as root and as an unprivileged user, on labs of their own.
tutorials: setup
	$(BIN)/pytest -v -p no:cacheprovider $(addprefix tests/integration/test_, tutorial.py installed.py)

# A cluster of five systems, there and back, and every role on Ubuntu. Ubuntu and Enterprise Linux are SIMULATED: files of Debian
# with their os-release. Slurm of Ubuntu is refused.
systems: setup
	$(BIN)/pytest -v -p no:cacheprovider tests/integration/test_systems.py tests/integration/test_more_systems.py $(RECORD_SYSTEMS)
	for system in ubuntu_22.04 ubuntu_24.04; do \
	  MOLECULE_SYSTEM=$$system $(BIN)/pytest -q -p no:cacheprovider tests/molecule -k "not slurm" $(RECORD_SYSTEMS) || exit 1; done

# The same promises of package managers for apt and dnf, on a node of Debian and one of SIMULATED Enterprise Linux (ten minutes).
# Other systems: PACKAGE_SYSTEMS=apt=ubuntu24,dnf=el8. A part of them: PACKAGE_CASES="-k lock".
package-managers: setup
	$(BIN)/pytest -v -p no:cacheprovider tests/integration/test_package_managers.py -m long $(PACKAGE_CASES)

# Debian's real driver and a SIMULATED RDMA stack, and their builds on container nodes (half an hour on two processors);
# `make baremetal` loads the driver.
driver: setup
	$(BIN)/pytest -v -p no:cacheprovider tests/integration/test_nvidia_driver.py tests/integration/test_rdma_stack.py

# A Slurm cluster of four nodes, there and back, on Debian 12 and 13; jobs, and the contract of job engines (an hour on two
# processors).
slurm: setup
	$(BIN)/pytest -v -p no:cacheprovider tests/molecule -k slurm $(RECORD_SYSTEMS)
	$(BIN)/pytest -v -p no:cacheprovider $(addprefix tests/integration/test_slurm_, role.py jobs.py topology.py existing.py backup.py) -m long \
	  $(RECORD_SYSTEMS)
	$(BIN)/pytest -v -p no:cacheprovider tests/unit/jobs/test_engine_contract.py -m long

# 500 jobs of three users on Slurm, random faults, and the documented features (hours on two processors). SLURM_JOBS=N submits
# another number; SLURM_FAULTS_SEED=N repeats the faults.
slurm-load: setup
	$(BIN)/pytest -v -s -p no:cacheprovider $(addprefix tests/integration/test_slurm_, many_jobs.py faults.py) -m long
	$(BIN)/pytest -v -p no:cacheprovider tests/integration/test_job_rows.py --engine slurm

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
	$(BIN)/pytest -q -p no:cacheprovider tests/baremetal $(RECORD_SYSTEMS)

# tests/benchmarks/README.md says how to read them; Mitogen and pyinfra have an environment of their own.
BENCH_VENV := build/bench/venv

bench: bench-look bench-nodes

bench-look: setup
	$(BIN)/python -m tests.benchmarks.many_nodes $(BENCH_LOOK)

bench-nodes: setup $(BENCH_VENV)/.done
	$(BIN)/python -m tests.benchmarks.container_nodes --venv $(BENCH_VENV) $(BENCH_NODES)

# The ratios of a new run are compared with the recorded ones; `make -o bench bench-gate` compares those of the last runs.
bench-gate: bench
	$(BIN)/python -m tools.performance gate

# Writes the last runs, if no files were modified, into docs/data/performance.json and its page.
bench-record:
	$(BIN)/python -m tools.performance record
	$(BIN)/python -m tools.performance_page

# BEFORE=CHECKOUT: another checkout with a .venv of its own.
bench-revisions: setup
	$(BIN)/python -m tests.benchmarks.revisions $(BEFORE) $(BENCH_REVISIONS)

bench-jobs: setup
	$(BIN)/python -m tests.benchmarks.batch_jobs $(BENCH_JOBS)

bench-images: setup
	$(BIN)/python -m tests.benchmarks.image_copies $(BENCH_IMAGES)

bench-launch: setup
	$(BIN)/python -m tests.benchmarks.launch $(BENCH_LAUNCH)

# Slurm's packages are unpacked, not installed: slurmctld runs with no daemon of its nodes.
BENCH_SLURM := build/bench/slurm
BENCH_SLURM_PACKAGES := slurmctld slurm-client slurm-wlm-basic-plugins libslurm38 libmunge2 libhwloc15 liblua5.1-0
bench-placement: setup $(BENCH_SLURM)/.done
	$(BIN)/python -m tests.benchmarks.placement_traffic --slurm $(BENCH_SLURM) $(BENCH_PLACEMENT)

$(BENCH_SLURM)/.done:
	mkdir -p $(BENCH_SLURM)
	cd $(BENCH_SLURM) && apt-get -qq download $(BENCH_SLURM_PACKAGES)
	for package in $(BENCH_SLURM)/*.deb; do dpkg -x $$package $(BENCH_SLURM) || exit 1; done
	touch $@

$(BENCH_VENV)/.done: tests/benchmarks/requirements.lock
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/benchmarks/requirements.lock
	touch $@

docs: $(VENV)/.done
	$(BIN)/python -m provision.inventory.example > inventories/example/group_vars/all.yml
	$(BIN)/python -m provision.report.reasons_page > docs/reference/reasons.md
	$(BIN)/python tools/export_page.py
	$(BIN)/python -m tools.command_pages
	$(BIN)/python -m tools.man_pages
	$(BIN)/python -m tools.variables_page > docs/reference/variables.md
	$(BIN)/python -m tools.ports_page > docs/reference/ports.md
	$(BIN)/python -m tools.systems_page > docs/reference/systems.md
	$(BIN)/python -m tools.performance_page
	$(BIN)/python -m tools.json_page > docs/reference/json.md
	$(BIN)/python -m tools.advise_page > docs/reference/advise.md
	$(BIN)/python -m tools.terminal_picture
	$(BIN)/python -m tools.topology_picture
	$(MAKE) site

# The site in build/site; warnings are errors, and all links and their anchors are checked.
site: export NO_MKDOCS_2_WARNING = 1
site:
	nice $(BIN)/mkdocs --quiet build --strict

# Every page in Chromium, by tools/site_check.py (ten minutes or more on two processors). A part of it, with pictures of the
# pages: SITE_CHECK="--pages how-to --screenshots build/screenshots".
AXE := build/axe-core-4.14.1.tgz
AXE_SHA256 := e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
site-check: site $(AXE)
	$(BIN)/python -m tools.site_check $(AXE) $(SITE_CHECK)

$(AXE):
	@command -v npm >/dev/null || { echo "npm: not installed; it downloads axe-core"; echo "Run: apt-get install npm"; exit 1; }
	mkdir -p $(@D)
	npm pack --silent --pack-destination $(@D) axe-core@4.14.1
	echo "$(AXE_SHA256)  $@" | sha256sum --check --quiet || { rm $@; exit 1; }

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
