# Two targets matter: `make demo` shows the whole thing on real data, `make test` proves it. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
.DELETE_ON_ERROR:

# Where Python may write no bytecode, each process compiles every module again, and the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

# The first one that runs and is new enough: a name on PATH may be a version manager's empty promise.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP = tests/servers/retry.sh $(BIN)/python -m pip
INSTALLED := $(VENV)/.installed
COMPILED := $(wildcard $(addprefix src/cdcflow/sources/,*/compiled/*.pyx */compiled/*.pxi */types/*.pxi))
JARS := $(VENV)/.jars
SEEDS ?= 10000
MESSAGES ?= 200000
CHROMIUM := $(and $(shell command -v chromedriver),$(shell command -v chromium chromium-browser google-chrome google-chrome-stable))
MUTANTS ?= 200
SEED ?= 1

.PHONY: help
help: ## this list
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | awk -F'\t' '{printf "  make %-17s %s\n", $$1, $$2}'

# ── what a fresh machine needs ───────────────────────────────────────────────────────────────────────────────

.PHONY: python java
python:
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		echo "cdcflow needs Python 3.11 or newer. Install one, or say make PYTHON=/path/to/python3.11" >&2
		exit 1
	fi

java:
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java
	if ! version=$$("$$java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p') || [ "$${version:-0}" -lt 17 ]; then
		echo "cdcflow's Spark job needs Java 17 or newer; found: $${version:-none}. Install one (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME" >&2
		exit 1
	fi

$(INSTALLED): pyproject.toml setup.py constraints.txt $(COMPILED) | python
	@echo "installing cdcflow and what it needs into $(VENV) (once, 2 GB, one to three minutes) …"
	[ -x $(BIN)/python ] || "$(PYTHON)" -m venv $(VENV)
	export PIP_CONSTRAINT=$(abspath constraints.txt) PIP_BUILD_CONSTRAINT=$(abspath constraints.txt) PIP_DISABLE_PIP_VERSION_CHECK=1
	$(PIP) install --quiet --upgrade pip
	# What is imported is compiled then: most of these libraries' modules never are.
	$(PIP) install --quiet --no-compile --editable '.[demo]' --group dev
	touch $@

$(JARS): $(INSTALLED) src/cdcflow/spark/jars.py | java
	@echo "fetching Spark's jars into the cache (once, 100 MB) …"
	$(BIN)/python -m cdcflow.spark.jars --kafka --iceberg --s3
	touch $@

.PHONY: setup
setup: $(INSTALLED) $(JARS) ## install everything, do nothing else

# ── see it ───────────────────────────────────────────────────────────────────────────────────────────────────

# Without Spark a small environment does, unless the whole one is there.
SMALL := .venv-local
SMALL_INSTALLED := $(SMALL)/.installed
DEMO_BIN := $(if $(filter local,$(ENGINE)),$(if $(wildcard $(INSTALLED)),$(BIN),$(SMALL)/bin),$(BIN))

$(SMALL_INSTALLED): pyproject.toml setup.py constraints.txt $(COMPILED) | python
	@echo "installing cdcflow without Spark into $(SMALL) (once, about half a minute) …"
	[ -x $(SMALL)/bin/python ] || "$(PYTHON)" -m venv $(SMALL)
	export PIP_CONSTRAINT=$(abspath constraints.txt) PIP_BUILD_CONSTRAINT=$(abspath constraints.txt) PIP_DISABLE_PIP_VERSION_CHECK=1
	# What is compiled makes a capture faster, and the demo's rows are few: compiling takes longer than all the rest.
	CDCFLOW_PLAIN=1 tests/servers/retry.sh $(SMALL)/bin/python -m pip install --quiet --no-compile --editable '.[demo-local]'
	touch $@

.PHONY: demo
demo: $(if $(filter local,$(ENGINE)),$(if $(wildcard $(INSTALLED)),,$(SMALL_INSTALLED)),setup) demo-servers ## capture a busy database into Delta tables, kill the daemon on the way, prove the result (ENGINE=local: without Spark; SOURCE=mysql, mariadb; LOG=kafka; FORMAT=iceberg; WAREHOUSE=s3)
	@$(DEMO_BIN)/cdcflow demo $(if $(ENGINE),--engine $(ENGINE)) $(if $(SOURCE),--source $(SOURCE)) $(if $(LOG),--log $(LOG)) $(if $(FORMAT),--format $(FORMAT)) $(if $(WAREHOUSE),--warehouse $(WAREHOUSE)) $(DEMO)

.PHONY: demo-servers
demo-servers: $(if $(filter local,$(ENGINE)),,$(INSTALLED))
	@$(if $(filter mysql mariadb,$(SOURCE)),$(DEMO_BIN)/python -m tests.servers.mysql $(SOURCE))
	$(if $(filter kafka,$(LOG)),$(DEMO_BIN)/python -m tests.servers.kafka)
	$(if $(filter s3,$(WAREHOUSE)),$(DEMO_BIN)/python -m tests.servers.objects)

# ── prove it ─────────────────────────────────────────────────────────────────────────────────────────────────

.PHONY: servers
servers: $(INSTALLED) ## find, fetch or build what the tests start: databases, brokers, object store, registry, readers, Debezium, Docker's parsers
	@$(BIN)/python -m tests.servers.mysql
	$(BIN)/python -m tests.servers.kafka
	$(BIN)/python -m tests.servers.objects
	$(BIN)/python -m tests.servers.registry
	$(BIN)/python -m tests.servers.catalogs
	$(BIN)/python -m tests.servers.readers
	$(BIN)/python -m tests.support.publish.debezium
	$(BIN)/python -m tests.support.docker.compose_files

# pytest compiles each test file with its assertions explained, and stores that: two processes do it once, not each of six.
COLLECT := python -m pytest --numprocesses 0 --collect-only --quiet --quiet

.PHONY: collected
collected: $(INSTALLED)
	@$(BIN)/$(COLLECT) tests/integration > /dev/null & $(BIN)/$(COLLECT) --ignore tests/integration tests > /dev/null || true; wait

# What comes before the tests waits for downloads, or keeps one processor busy (types): so it runs side by side.
.PHONY: test
test: $(INSTALLED) ## lint, types, floors and every test, with real servers (what CI runs)
	@$(MAKE) --no-print-directory --jobs 4 --output-sync=target lint setup servers $(if $(PYTEST),,collected)
	$(BIN)/python -m pytest --numprocesses 6 --dist loadscope --no-loadscope-reorder -m "not long$(if $(CHROMIUM),, and not page)" $(PYTEST)

.PHONY: test-page page-pictures
test-page: $(INSTALLED) ## the page in a real Chromium, without a window (needs chromium and chromedriver)
	@$(BIN)/python -m tests.page.browser
	$(BIN)/python -m pytest -m page $(PYTEST) tests/page

page-pictures: $(INSTALLED) ## what the page looks like, for docs/images; also its weight and its time to first paint
	@$(BIN)/python -m tests.page.browser
	$(BIN)/python -m tests.page.pictures docs/images

.PHONY: test-ops
test-ops: $(INSTALLED) ## the first month of an operator, and alerts that daemons fire (chromium, prometheus)
	@$(BIN)/python -m tests.page.browser
	$(BIN)/python -m tests.ops.prometheus
	$(BIN)/python -m tests.servers.objects
	$(BIN)/python -m pytest -m long $(PYTEST) tests/ops

.PHONY: dashboard-picture
dashboard-picture: $(INSTALLED) ## what Grafana's dashboard shows of two daemons, drawn from its queries, for docs/images (chromium, prometheus)
	@CDCFLOW_PICTURES=$(abspath docs/images) $(BIN)/python -m pytest -m long -n0 tests/ops/test_dashboard.py

.PHONY: test-budget test-takeover test-long test-kafka-faults test-format verify-soak test-stack test-servers test-cluster
test-long: setup servers ## the tests that `make test` leaves out: whole stack, three brokers, more kill points, streaming merge
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadscope -m long --ignore tests/ops --ignore tests/chart --ignore tests/release --ignore tests/schedulers $(PYTEST)

test-kafka-faults: setup servers ## a log in Kafka under every fault: brokers killed, moved, cut off, slow; a daemon killed at each step
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadscope tests/integration/kafka $(PYTEST)

test-format: setup servers ## the logs of all tests, read once more by a reader that knows the format's page alone
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadscope -m "not long and not spark" --every-log $(PYTEST) tests/integration

verify-soak: setup servers ## compare source and copy for MINUTES=10 on each server, beside writers, merges and kills of the daemon; then once more by other code
	@MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest -m long tests/integration/verify $(PYTEST)

test-stack: setup servers ## the dev stack of docker/, started as processes, from seed data to merged and verified tables
	@$(BIN)/python -m pytest tests/integration/docker $(PYTEST)

test-budget: $(INSTALLED) ## outages until the budget of the source's log is passed, OUTAGES=30 of each server, SEED=1
	OUTAGES=$(or $(OUTAGES),3) SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/integration/daemon/test_random_budget_outages.py -m long -n0 -s $(PYTEST)

.PHONY: test-quorum
test-quorum: $(INSTALLED) ## takeovers of a log with peers under load, TAKEOVERS=10 of each server, SEED=1
	TAKEOVERS=$(or $(TAKEOVERS),10) SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/integration/daemon/test_replicated_takeovers.py tests/integration/mysql_daemon/test_replicated_takeovers_of_binlogs.py -m long -n0 -s $(PYTEST)

test-takeover: $(INSTALLED) ## N=200 takeovers under load, on each server and each lease, SEED=1; prints how long they take
	N=$(or $(N),24) SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/integration/daemon/test_random_takeovers.py -m long -n0 -s $(PYTEST)

test-cluster: setup ## a standalone Spark cluster on an object store; two drivers on one warehouse, one of them stopped in between
	@$(BIN)/python -m tests.servers.objects
	$(BIN)/python -m pytest tests/cluster $(PYTEST)

test-servers: setup ## contracts, visibility, DDL and types over each PostgreSQL, MySQL and MariaDB to be had (SERVER=mysql, "MariaDB 11.8")
	@$(BIN)/python tests/servers/run.py $(if $(SERVER),--server "$(SERVER)") $(PYTEST)

.PHONY: test-chart
test-chart: $(INSTALLED) ## the Helm chart: every combination of its values, against the schemas of Kubernetes (needs helm, or Go to build it)
	@$(BIN)/python -m tests.servers.helm
	$(BIN)/python -m pytest -m long -n0 $(PYTEST) tests/chart

.PHONY: alerts
alerts: ## check docker/prometheus with promtool, and play each alert against series (Debian: apt install prometheus)
	@command -v promtool >/dev/null || { echo "promtool is not on PATH. Debian: apt install prometheus" >&2; exit 1; }
	promtool check rules docker/prometheus/alerts.yaml
	promtool test rules docker/prometheus/alerts.test.yaml

.PHONY: wheels
wheels: $(INSTALLED) ## a wheel for each CPython 3.11 to 3.14 here, installed and tried without a compiler and without Java
	@$(BIN)/python tests/wheels/build.py

RELEASE := $(VENV)/release

$(RELEASE)/.installed: $(INSTALLED)
	@[ -x $(RELEASE)/bin/python ] || $(BIN)/python -m venv $(RELEASE)
	export PIP_CONSTRAINT=$(abspath constraints.txt) PIP_DISABLE_PIP_VERSION_CHECK=1
	tests/servers/retry.sh $(RELEASE)/bin/python -m pip install --quiet --upgrade pip
	tests/servers/retry.sh $(RELEASE)/bin/python -m pip install --quiet --group release
	touch $@

.PHONY: release test-release
release: $(RELEASE)/.installed ## what is committed as sdists, manylinux wheels, chart, parts list (CycloneDX) and checksums, in dist/release
	@$(BIN)/python -m tests.release.build $(RELEASE)/bin

test-release: $(RELEASE)/.installed ## build a release twice and compare the bytes; install its wheels without a compiler
	@CDCFLOW_RELEASE_TOOLS=$(RELEASE)/bin $(BIN)/python -m pytest -m long -n0 $(PYTEST) tests/release/test_release.py

.PHONY: test-schedulers
test-schedulers: $(INSTALLED) ## the packages for Airflow, Dagster and MCP, and the sources for dbt, in real ones (each gets its own environment)
	@$(BIN)/python -m tests.schedulers.environments
	$(BIN)/python -m pytest -m long -n0 $(PYTEST) tests/schedulers

.PHONY: lint
lint: $(INSTALLED) ## format, lint, types, import floors, Dockerfiles
	@$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/yamllint --strict docker
	$(BIN)/hadolint docker/Dockerfile docker/merge.Dockerfile

AUDIT := $(VENV)/audit

.PHONY: audit
audit: $(INSTALLED) ## known vulnerabilities of what constraints.txt pins (PyPI's advisories); 1 where one was found or could not be looked up
	@[ -x $(AUDIT)/bin/pip-audit ] || { $(BIN)/python -m venv $(AUDIT); tests/servers/retry.sh $(AUDIT)/bin/python -m pip install --quiet pip-audit==2.10.1; }
	$(AUDIT)/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off -r constraints.txt

.PHONY: own-jar
own-jar: $(JARS) ## build our jar for Spark from java/ (needs a JDK: javac)
	@$(BIN)/python java/build.py

.PHONY: unit
unit: $(INSTALLED) ## unit tests, scenarios, and the contracts of sources and sinks (these start servers)
	@$(BIN)/python -m pytest tests/unit tests/scenarios tests/contracts plugins/*/tests --ignore-glob '*/test_killed.py' $(PYTEST)

.PHONY: simulate
simulate: $(INSTALLED) ## SEEDS=10000 seeded schedules of the simulation
	@$(BIN)/python tests/simulation/run.py --seeds $(SEEDS)

.PHONY: mutants
mutants: $(INSTALLED) ## plant MUTANTS=200 small faults (SEED=1, ROOM=tables/merge), one at a time; SERVERS=1: real servers for survivors
	@$(BIN)/python tests/mutants/run.py --mutants $(MUTANTS) --seed $(SEED) $(if $(ROOM),--room $(ROOM)) $(if $(SERVERS),--servers)

.PHONY: fuzz fuzz-asan
fuzz: $(INSTALLED) ## compiled and plain decoders and kernels against each other, over MESSAGES=200000 random and garbled messages
	@PYTHONPATH=. $(BIN)/python tests/fuzz/run.py --messages $(MESSAGES)
	PYTHONPATH=. $(BIN)/python tests/fuzz/run_mysql.py --messages $(MESSAGES)
	PYTHONPATH=. $(BIN)/python tests/fuzz/run_kernels.py --messages $(MESSAGES)

fuzz-asan: $(INSTALLED) ## the same with decoders built so that a read beyond a buffer ends the run (AddressSanitizer)
	@tests/fuzz/asan.sh $(BIN)/python --messages $(MESSAGES)

.PHONY: fuzz-ddl
fuzz-ddl: $(INSTALLED) ## random DDL beside a daemon, log against source: SEEDS=2000 a server, or MINUTES=5, SERVER=mysql only, JOBS at a time
	@$(BIN)/python tests/ddlfuzz/run.py --seeds $(if $(filter command line,$(origin SEEDS)),$(SEEDS),2000) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(SERVER),--server $(SERVER)) $(if $(JOBS),--jobs $(JOBS)) $(FUZZ)

.PHONY: test-suites
test-suites: setup servers ## the servers' own test suites next to a daemon, every table compared: MINUTES=10 a server, SERVER=mysql, SEED=1, RELEASE=19, MODE=killed
	@PYTHONPATH=. $(BIN)/python tests/suites/run.py --seed $(SEED) --minutes $(or $(MINUTES),10) $(if $(SERVER),--server $(SERVER)) $(if $(RELEASE),--release $(RELEASE)) $(if $(MODE),--mode $(MODE))

# ── measure it ───────────────────────────────────────────────────────────────────────────────────────────────

BENCHED := $(VENV)/.benched
BENCHES := drain catchup backfill executors load governed latency transaction growth restart writer kafka publish tokafka kafkalatency merge mergelatency fresh freshrate tables verify log quorum mysql.drain mysql.backfill mysql.memory

$(BENCHED): $(INSTALLED)
	@echo "installing what the benchmarks' Python peers and plots need (once) …"
	export PIP_CONSTRAINT=$(abspath constraints.txt) PIP_DISABLE_PIP_VERSION_CHECK=1
	$(PIP) install --quiet --group bench
	touch $@

.PHONY: bench bench-quick bench-docs $(BENCHES:%=bench-%)
bench: $(BENCHED) ## every benchmark with its limit and its peers (about an hour); bench-NAME runs one: drain …
	@$(BIN)/python -m bench $(BENCH)

bench-quick: $(BENCHED) ## drain, catch-up, backfill and latency with their targets, in under 5 minutes
	@$(BIN)/python -m bench --quick $(BENCH)

$(BENCHES:%=bench-%): bench-%: $(BENCHED)
	@$(BIN)/python -m bench $* $(BENCH)

.PHONY: bench-beside
bench-beside: $(INSTALLED) ## this checkout beside another one in the same rounds (TREE=../old)
	@$(BIN)/python -m bench.beside $(TREE) $(BENCH)

.PHONY: bench-policies
bench-policies: $(INSTALLED) ## what policies and row rules cost, as a share of a drain and of a backfill (TREE=../old: next to an older checkout)
	@$(BIN)/python -m bench.policies $(if $(TREE),--tree $(TREE)) $(BENCH)

bench-docs: $(BENCHED) ## write the latest results into docs/performance.md, bench/results/*.md and their plots
	@$(BIN)/python -m bench.document $(BENCH)

# ── read it ──────────────────────────────────────────────────────────────────────────────────────────────────

BOOK := $(VENV)/.book

$(BOOK): $(INSTALLED)
	@echo "installing what the book is built with (once) …"
	export PIP_CONSTRAINT=$(abspath constraints.txt) PIP_DISABLE_PIP_VERSION_CHECK=1
	$(PIP) install --quiet --group docs
	touch $@

.PHONY: docs
docs: $(BOOK) ## build the book into site/, strict: a broken link or anchor ends it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	echo "the book is in site/index.html"

DOCS_BRANCH ?= book
DOCS_VERSION := $(shell sed -nE 's/^__version__ = "([0-9]+\.[0-9]+).*/\1/p' src/cdcflow/version.py)

.PHONY: docs-version test-docs
docs-version: docs ## add the book of this version to the branch DOCS_BRANCH=book, next to those of other versions, with a selector
	@export NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(BIN)):$$PATH"
	mike --quiet deploy --config-file mkdocs.versions.yml --branch $(DOCS_BRANCH) --alias-type redirect --update-aliases $(DOCS_VERSION) latest
	mike --quiet set-default --config-file mkdocs.versions.yml --branch $(DOCS_BRANCH) latest
	echo "the branch $(DOCS_BRANCH) has the versions $$(mike list --branch $(DOCS_BRANCH) | tr '\n' ' ')"

test-docs: $(BOOK) ## two versions of the book on a branch, and the selector in a browser (chromium)
	@$(BIN)/python -m tests.page.browser
	$(BIN)/python -m pytest -m long -n0 $(PYTEST) tests/release/test_book.py

.PHONY: reference
reference: $(INSTALLED) ## write the reference pages from the code: docs/settings.md, docs/options.md, docs/types.md
	@$(BIN)/python -m tests.reference

# ── contribute ──────────────────────────────────────────────────────────────────────────────────────────────

.PHONY: hooks commits times
hooks: $(INSTALLED) ## run format, lint, import floors and words before each commit of this checkout (pre-commit)
	@$(BIN)/pre-commit install --hook-type pre-commit --hook-type commit-msg

commits: $(INSTALLED) ## the last 20 commits have a short subject and a body that says why
	@$(BIN)/python -m tests.commits

times: $(INSTALLED) ## run TARGETS="lint unit" and write how long they take into CONTRIBUTING.md
	@$(BIN)/python tests/times.py $(TARGETS)

# ── tidy ─────────────────────────────────────────────────────────────────────────────────────────────────────

.PHONY: format
format: $(INSTALLED) ## rewrite the sources in the house format
	@$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

.PHONY: clean
clean: ## remove what the targets made here (the jar cache stays)
	@find src -name '*.so' -delete
	rm -rf $(VENV) $(SMALL) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo-*
