# The two commands are `make demo` and `make test`; each sets up what it needs.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
UI_PORT ?= 3000
WORKSPACE ?= workspace.yaml
export DAGSTER_HOME := $(CURDIR)/.writetime/dagster
export PATH := $(CURDIR)/$(BIN):$(PATH)
# With this variable, each program would compile the modules again.
unexport PYTHONDONTWRITEBYTECODE
STAMP := $(VENV)/.installed
CLASSES := $(VENV)/spark.jsa
MODULES := $(VENV)/.modules
# More processes than cores, because tests often wait. A test has 900 seconds (timeout in pyproject.toml), and fails then.
# If it hangs in native code, which no signal ends, its process ends later, and prints what each thread does. If a process
# is killed, such as for want of memory, all end: xdist has been seen to wait for its tests for ever.
HANGS_AFTER = 1800
PYTEST = $(BIN)/python -m pytest -n 4 --max-worker-restart 0 --dist loadscope --no-loadscope-reorder \
	-o faulthandler_timeout=$(HANGS_AFTER) -o faulthandler_exit_on_timeout=true
# Long tests (pytest.mark.long) take four fifths of the time of all. The commit decides which eighth of them runs, so
# that a commit always has the same tests, and other commits have the others. PART=all runs all.
PART ?= $(shell echo 0x$$(git rev-parse --verify --short=8 HEAD 2>/dev/null || echo 0))
# Java ignores an archive that is missing, or that has other jars or comes from another Java. Spark removes the quotes.
export SPARK_SUBMIT_OPTS ?= -XX:SharedArchiveFile="$(CURDIR)/$(CLASSES)"

# `dagster dev` starts its daemon by name, so the environment's programs must be on PATH.
.PHONY: setup instance port demo test tests check quick coverage test-long test-iceberg test-python test-newest test-matrix test-without-shared-servers test-scylla ui prepared compiled style lint api release bench clean

setup: $(STAMP)

# Python compiles each module when it is first imported. Pip would compile all modules, one after the other.
$(STAMP): requirements.lock pyproject.toml
	@echo "installing Python packages from requirements.lock (a minute or two the first time) ..."
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 15) else "Python 3.11 to 3.14 is needed; name one: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Dagster reads its instance configuration from DAGSTER_HOME only.
instance: setup
	@mkdir -p "$(DAGSTER_HOME)" && cp dagster.yaml "$(DAGSTER_HOME)/"

# If there are no settings yet, the demo's are written. SCYLLA=host:port runs the demo on that ScyllaDB.
demo: instance
	@$(BIN)/python -m demo.settings $(SCYLLA)
	@$(BIN)/python -m demo

# Checked before anything starts: two daemons on one instance would start each schedule twice.
port: setup
	@$(BIN)/python -c 'from writetime.servers.process import port_answers as used; import sys; sys.exit(used($(UI_PORT)))' \
		|| { echo "port $(UI_PORT) is in use: if not by a \`make ui\`, take another by \`make ui UI_PORT=3001\`"; exit 1; }

ui: port instance
	@$(BIN)/writetime up
	@echo "Dagster: http://127.0.0.1:$(UI_PORT) (Ctrl-C stops it)"
	@PYTHONWARNINGS='ignore:Function `dev_command` is superseded' $(BIN)/dagster dev -w $(WORKSPACE) -h 127.0.0.1 -p $(UI_PORT) --log-level warning

# T=tests/lake/test_run.py runs only these tests. Without T, style is checked while the tests run, which often wait.
test: setup
	@$(if $(T),$(BIN)/python -m pytest $(T),$(MAKE) --no-print-directory -j 2 style tests)

tests: compiled $(CLASSES) $(MODULES)
	@$(PYTEST) $(if $(filter all,$(PART)),,--part $(PART)) --durations=20 --cov --cov-report=
	@$(BIN)/coverage report --format=total | sed 's/.*/coverage of branches by tests that start no server: & %/'

# To run before each commit: style, and at the same time the quick tests that need no servers.
check: setup
	@$(MAKE) --no-print-directory -j 2 style quick

# Modules of slow and long tests are not even imported.
quick: compiled
	@$(PYTEST) --without-servers $$(grep -rLwE 'pytest\.mark\.(slow|long)' tests --include='test_*.py')

# The branches that the tests without servers and tests/storage cover.
coverage: compiled
	@$(PYTEST) --without-shared-servers --ignore tests/security --cov --cov-report term

# The same as `make test`, with long tests of faults at their full length, and all examples of tests of properties.
test-long: HANGS_AFTER = 4000
test-long: prepared $(CLASSES) $(MODULES)
	@$(PYTEST) --long

# Iceberg tables, read by more engines after each of 1,000 refreshes. Their packages are in a folder of their own.
ICEBERG_ENGINES := .writetime/iceberg-engines
test-iceberg: setup $(ICEBERG_ENGINES)
	@$(BIN)/python -m pytest --long --iceberg-engines $(ICEBERG_ENGINES) tests/iceberg/test_readers.py

$(ICEBERG_ENGINES): tests/iceberg/engines.txt
	@echo "installing ClickHouse and Spark 4.1 (1.1 GB) ..."
	@rm -rf $@
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target $@ -r $<
	@touch $@

# The tests that need no servers, and those of tests/security and tests/storage, on each Python of this machine, each
# in its own environment.
test-python: setup
	@$(BIN)/python -m tools.pythons

# The tests of `make test` with the newest packages that pyproject.toml allows, in their own environment. BEYOND=yes: also
# those that it does not allow. The classes that Spark's Java archived are of other jars.
NEWEST := .writetime/newest
test-newest: setup
	@$(BIN)/python -m tools.newest $(if $(BEYOND),--beyond) $(NEWEST)
	@touch $(NEWEST)/.installed
	@env -u SPARK_SUBMIT_OPTS $(MAKE) --no-print-directory $(if $(T),test,tests) VENV=$(NEWEST)

# The tests without shared servers, on this Python only.
test-without-shared-servers: setup
	@$(PYTEST) --without-shared-servers

# The tests of stages that read Cassandra's files or answers, on each of its versions; and those above on each Python.
MATRIX_TESTS := tests/capture tests/lake/test_backfill.py tests/lake/test_compacted.py tests/lake/test_counters.py \
	tests/row_events/test_publish.py tests/verify
test-matrix: setup
	@status=0; for version in 4.0 4.1 5.0 6.0; do \
		echo "Cassandra $$version"; $(BIN)/python -m pytest $(MATRIX_TESTS) --cassandra $$version || status=1; \
	done; $(BIN)/python -m tools.pythons || status=1; exit $$status

# The whole platform on a running ScyllaDB, with vnodes and then with tablets. DATA is the node's data folder, and
# NODETOOL is the command to run its nodetool, both for backfills. For a cluster, they list all nodes, with commas.
# LOGIN is of a superuser, if the database has roles and rights. RESTART kills the only node and starts it.
SCYLLA_TESTS := tests/scylla tests/clients tests/ingest tests/http tests/demo tests/faults tests/workqueue tests/replay
test-scylla: setup
ifdef SCYLLA
	@status=0; for tablets in off on; do \
		$(BIN)/python -m pytest -rs $(SCYLLA_TESTS) --scylla "$(SCYLLA)" --scylla-tablets $$tablets \
			$(if $(LOGIN),--scylla-login "$(LOGIN)") $(if $(DATA),--scylla-data "$(DATA)") \
			$(if $(NODETOOL),--scylla-nodetool "$(NODETOOL)") $(if $(SSTABLE),--scylla-sstable "$(SSTABLE)") \
			$(if $(RESTART),--scylla-restart "$(RESTART)") || status=1; \
	done; exit $$status
else
	@echo "skipped: tests on ScyllaDB, as none is named: make test-scylla SCYLLA=host:port [LOGIN=name:password] [DATA=folder] [NODETOOL=command] [SSTABLE=command] [RESTART=command]"
endif

# Style, and at the same time numba's functions, which each process of the tests would otherwise compile.
prepared: setup
	@$(MAKE) --no-print-directory -j 2 style compiled

compiled: setup
	@$(BIN)/python -m tools.compile

$(CLASSES): $(STAMP)
	@$(BIN)/python -m tools.spark_archive $@

# Python and pytest compile modules when they are first imported. In a new environment, each process of the tests would
# compile the same modules. Tests that cannot be collected fail in those processes, which name the reason.
$(MODULES): $(STAMP)
	@$(BIN)/python -m pytest --collect-only --quiet > /dev/null || true
	@touch $@

# Without the audit: a newly published vulnerability must not fail the tests. A larger space for new objects saves pyright
# a sixth of its CPU time, as Node collects less often.
style: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-cache
	@NODE_OPTIONS=--max-semi-space-size=128 $(BIN)/pyright

lint: style
	@$(BIN)/python -m tools.audit

# Build the wheel, the source distribution and the list of components in dist/, and try them. Uploads nothing.
release: setup
	@$(BIN)/python -m tools.release

# Write the reference of the Python interface, as HTML in .writetime/api.
api: setup
	@$(BIN)/python -m tools.api

# Peers and project in one run on the same data; nothing else should run meanwhile.
bench: setup
	@$(BIN)/python -m bench.ingest
	@$(BIN)/python -m bench.storage
	@$(BIN)/python -m bench.merge
	@$(BIN)/python -m bench.row_events
	@$(BIN)/python -m bench.rows
	@$(BIN)/python -m bench.view_readers
	@$(BIN)/python -m bench.lookups
	@$(BIN)/python -m bench.capture
	@$(BIN)/python -m bench.many_tables
	@$(BIN)/python -m bench.workqueue
	@$(BIN)/python -m bench.replay

# A server whose folder is deleted would continue to run, and no command could find it.
clean:
	@test ! -x $(BIN)/writetime || test ! -d .writetime/servers || $(BIN)/writetime down
	@test ! -x $(BIN)/writetime || for settings in .writetime/tests/*/servers.toml; do \
		test ! -f "$$settings" || WRITETIME_CONFIG="$$settings" $(BIN)/writetime down || exit 1; \
	done
	rm -rf $(VENV) .writetime
