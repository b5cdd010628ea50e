# Two commands do all: `make demo` measures the study, `make test` runs the tests. Both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo ui test test-vllm test-machines chaos lint bench lock clean audit-packages

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"engcmp needs Python 3.11 or newer, this is {v.major}.{v.minor}; call make PYTHON=python3.11")'
	@echo "setting up $(VENV) from requirements.lock: about a minute"
	@# Anew where a set-up that was killed left one without pip.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	@# Also where PYTHONDONTWRITEBYTECODE is set: compiling takes each start 0.7 s otherwise.
	$(BIN)/python -m compileall -q definitions.py engcmp_assets engcmp_resources tests
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready requirements-dev.lock
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip check
	@touch $@

demo: setup
	@$(BIN)/engcmp demo

ui: setup
	@$(BIN)/engcmp ui

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(VENV)/.ready-dev lint
	@$(BIN)/python tests/run_all.py

# SIGKILL at 50 seeded moments of a run of two arms (10 are in `make test`): of the command, and of what the UI starts (run worker,
# daemon, webserver, engine: each in each place), with engines as child processes, as servers that run already and in containers. ENGCMP_CHAOS_SEED repeats
# another draw.
chaos: $(VENV)/.ready-dev
	ENGCMP_CHAOS_MOMENTS=50 $(BIN)/python -m pytest tests/chaos

# The capture plugin and the teacher on the real vLLM, torch and transformers, in an environment of their own outside the checkout
# (3.5 GB in the user's cache folder, or where ENGCMP_VLLM_ENV says). Linux x86-64; up to 15 minutes.
test-vllm: $(VENV)/.ready-dev
	$(BIN)/python -m engcmp_resources.vllm_environment
	ENGCMP_TEST_VLLM=1 $(BIN)/python -m pytest tests/vllm

# Several machines: Postgres and Redis of the system (postgresql, redis-server), an S3 server from the package index, two workers, each in a
# network namespace where this user may make one. About 5 minutes.
test-machines: $(VENV)/.ready-dev tests/machines/requirements.lock
	$(BIN)/python -m pip install --quiet --require-hashes -r tests/machines/requirements.lock
	ENGCMP_TEST_MACHINES=1 $(BIN)/python -m pytest tests/machines

# Numbers, not verdicts: how the seconds grow with the number of arms, rows and pages. They need the results of `make demo`.
bench: $(VENV)/.ready-dev
	@for script in tests/benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The locks hold every package with its hashes, for all platforms, and no index address. Needs uv. pip is in them because `engcmp`
# fetches with it and reads its messages; setuptools because the project itself is installed without build isolation.
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --no-strip-extras
lock:
	printf 'setuptools>=77\npip>=26\n' | $(LOCK) pyproject.toml - -o requirements.lock
	printf 'setuptools>=77\npip>=26\n' | $(LOCK) --extra dev -c requirements.lock pyproject.toml - -o requirements-dev.lock
	printf 'setuptools>=77\npip>=26\n' | $(LOCK) --extra machines -c requirements.lock pyproject.toml - -o engcmp_resources/deploy/requirements.lock
	printf 'setuptools>=77\npip>=26\n' | $(LOCK) --extra dev --extra machines --extra machines-dev -c requirements-dev.lock \
		-c engcmp_resources/deploy/requirements.lock pyproject.toml - -o tests/machines/requirements.lock

# Known vulnerabilities of the locked packages, by pip-audit in an environment of its own. It asks a service on the network; where none
# answers it says so and that nothing was audited, and is no failure.
audit-packages: $(VENV)/.ready
	@$(BIN)/python tests/security/audit_packages.py

clean:
	rm -rf $(VENV) .engcmp build *.egg-info
