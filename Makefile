# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO ?= parcae-report
# pip compiles nothing (--no-compile), so each process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-clusters test-slow test-spark-versions test-lowest coverage check weight jars dist docs bench format clean

# What the demo needs: learning for the world of cores, and reports; neither PyTorch nor Spark.
LEARN_READY := $(VENV)/.learn
$(LEARN_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[learn,report]'
	touch $(LEARN_READY)

$(READY): $(LEARN_READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	touch $(READY)

# Real Spark for the tests: PySpark from PyPI and, where there is none and it may be installed, a JDK.
SPARK_READY := $(VENV)/.spark
$(SPARK_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[spark,connect]'
	@command -v javac >/dev/null || (apt-get update -qq && apt-get install -qq -y --no-install-recommends openjdk-17-jdk-headless) \
		|| (sudo -n apt-get update -qq && sudo -n apt-get install -qq -y --no-install-recommends openjdk-17-jdk-headless) \
		|| echo "There is no JDK and none could be installed: tests with a real Spark are skipped (apt-get install openjdk-17-jdk-headless)."
	touch $(SPARK_READY)

demo: $(LEARN_READY)  ## Learn a policy from a real Spark event log in a minute, say what it would save, write a report.
	$(BIN)/parcae learn src/parcae/workloads/bundled/example-event-log.zstd --key spark.jobGroup.id -o $(DEMO) --budget 0.25 --cores 8 --arrivals load:0.8
	@echo "Open $(DEMO)/report.html"

test: $(SPARK_READY)  ## The default suite (minutes), with the reasons of what is skipped.
	$(BIN)/python -m pytest -rs

test-clusters: $(SPARK_READY)  ## The plugin on a real YARN and a real Kubernetes (Maven fetches Hadoop, Go builds Kubernetes, each once; PARCAE_CLUSTERS_REQUIRED=1: what is missing is a fault).
	-$(BIN)/python -m tests.clusters.kubernetes
	$(BIN)/python -m pytest -rs -n 0 -m clusters tests/clusters

test-slow: $(SPARK_READY)  ## What takes longer: the simulator against real Spark, the documents' commands that learn, measuring TPC-H (pip install -r benchmarks/spark/requirements.txt first), scale, NUMBA_BOUNDSCHECK, fuzzing.
	$(BIN)/python -m pytest -rs -m slow
	$(BIN)/python -m pytest --hypothesis-profile=many tests/properties
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/boundscheck $(BIN)/python -m pytest -n 0 tests/golden tests/simulation tests/policies -m ''

test-spark-versions: $(SPARK_READY) jars  ## The plugin's jars in the Sparks of PyPI, from 3.3 to the newest (2.5 GB of downloads).
	$(BIN)/python -m benchmarks.spark.versions

# The lowest versions that pyproject.toml allows, of what the README's commands need.
LOWEST := $(VENV)-lowest
PINS := import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*(one.replace(">=", "==") for one in p["dependencies"] + p["optional-dependencies"]["learn"] + p["optional-dependencies"]["report"]), sep="\n")
test-lowest:  ## The README's commands and some quick tests with the lowest versions that are allowed.
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -c '$(PINS)' > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -r $(LOWEST)/lowest.txt pytest pytest-xdist hypothesis
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(LOWEST)/bin/python -m pytest -n 0 tests/test_readme.py tests/golden tests/workloads/test_stage_table.py tests/policies/test_policy_file.py tests/evaluation/test_who_pays.py tests/evaluation/test_sizing.py
	$(LOWEST)/bin/parcae learn src/parcae/workloads/bundled/example-event-log.zstd -o $(LOWEST)/learned --budget 0.1 --arrivals load:0.8

# Compiled kernels leave no trace of their lines, so they are measured where Python runs them.
coverage: $(SPARK_READY)  ## Which lines the default suite runs outside kernels, and which lines of the cluster's kernels their tests run.
	$(BIN)/python -m pytest --cov --cov-report=
	$(BIN)/python -m coverage report --omit='*/kernels/*,*/kernels.py,*/play.py' --skip-covered
	NUMBA_DISABLE_JIT=1 COVERAGE_FILE=$(VENV)/kernels.coverage $(BIN)/python -m pytest -n 0 --cov=parcae.cluster.kernels --cov-report=term-missing tests/cluster tests/golden tests/simulation/test_draws_and_events.py

check: $(READY)  ## Style, types, layers, the budget of the house.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/weight.py

BEFORE ?= f0ba1aad
weight: $(READY)  ## What the house weighs, now and at the commit BEFORE.
	$(BIN)/python benchmarks/weight.py --against $(BEFORE)

jars:  ## The plugin's jars for Scala 2.12 and 2.13, where the package looks for them (needs Maven and a JDK).
	rm -f src/parcae/spark/jars/*.jar
	for line in 2.12 2.13; do mvn -B -q -f spark-plugin/pom.xml -Dscala.line=$$line -DskipTests package || exit 1; done

dist: $(READY) jars  ## A wheel with these jars, in dist/.
	rm -rf build/lib build/bdist.*
	SOURCE_DATE_EPOCH=315532800 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

docs: $(READY)  ## The documentation site, in build/site.
	$(BIN)/zensical build --strict

bench: $(READY)  ## Speed on this machine.
	$(BIN)/parcae bench simulator --json
	$(BIN)/parcae bench simulator --world executors --json
	$(BIN)/parcae bench decision --json
	$(BIN)/parcae bench decision --world executors --json
	$(BIN)/parcae bench training --json
	$(BIN)/parcae bench service --json
	$(BIN)/parcae bench rigid --json
	$(BIN)/python benchmarks/first_use.py
	$(BIN)/python -m benchmarks.environments
	$(BIN)/python -m benchmarks.ray_scaling

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(LOWEST) $(DEMO) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
