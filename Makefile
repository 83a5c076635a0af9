# Two commands matter: `make train` sets up and runs the main job, `make test` sets up and passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# one thread per process: two help on an idle machine and hurt badly on a busy one
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: train test test-actors test-originals mutants test-verl test-vllm test-clients check format setup browser sandbox clean

train: setup browser
	$(BIN)/uirl train configs/screen.yaml

# four at a time, a file each, the longest first (tests/conftest.py): half of their time goes into waiting for processes, pages and servers
test: setup browser sandbox check
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# what takes long because it starts processes: actors beside the learner, runs on Ray, machines that are lost
test-actors: setup browser sandbox
	$(BIN)/python -m pytest -m actors tests

# against MobileWorld's own agent and server, OpenEnv's own servers and that of ui-verifiers, as they were recorded (a
# part of `make test`); the recorders beside the tests say how a recording is made
test-originals: setup
	$(BIN)/python -m pytest -m originals tests/originals

# which small changes to the code no test notices: SAMPLE of them (0: all), drawn by SEED from MUTATE, each with those tests
# of RELATED that reach it (BUDGET seconds of them at most); 300 take about ten minutes of one core
MUTATE ?= uirl/rollout uirl/learner uirl/algorithms uirl/training uirl/storage
RELATED ?= tests/rollout tests/learner tests/algorithms tests/training tests/storage tests/cli
SAMPLE ?= 300
SEED ?= 0
BUDGET ?= 20
mutants: setup
	nice -n 10 $(BIN)/python scripts/mutants.py $(MUTATE) --tests $(RELATED) --skip 'learning|killed|full_disk' \
	  --sample $(SAMPLE) --seed $(SEED) --budget $(BUDGET)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "uirl needs Python 3.11 or newer, this is " + sys.version'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(READY)

browser: setup
	sh scripts/install_browser.sh

sandbox:
	sh scripts/install_bubblewrap.sh

# the algorithms against verl's own, whole runs of it on Ray, and TRL, in an environment of its own (2 GB, 7 minutes)
PLAIN := -p no:asyncio -o asyncio_mode= -o addopts= -o filterwarnings=
test-verl: .venv-verl/.ready
	.venv-verl/bin/python -m pytest -q -m verl tests/algorithms tests/integrations/verl $(PLAIN)
	PYTHONPATH=.venv-verl/trl .venv-verl/bin/python -m pytest -q -m verl tests/integrations/test_trl.py $(PLAIN)

.venv-verl/.ready: requirements-verl.txt requirements-trl.txt pyproject.toml
	$(PYTHON) -m venv .venv-verl
	.venv-verl/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-verl.txt
	.venv-verl/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target .venv-verl/trl -r requirements-trl.txt
	.venv-verl/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

# the engine for vLLM, with a real vLLM on the CPU, in an environment of its own (2.6 GB)
test-vllm: .venv-vllm/.ready
	.venv-vllm/bin/python -m pytest -m vllm tests/inference/vllm/real

.venv-vllm/.ready: requirements-vllm.txt scripts/torchvision_on_cpu.py pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-vllm.txt
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	site=$$(.venv-vllm/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  cp scripts/torchvision_on_cpu.py "$$site" && echo 'import torchvision_on_cpu' > "$$site/torchvision_on_cpu.pth"
	touch $@

# what uirl offers, used by the programs of others: Gymnasium and its learners, TRL and the loaders of datasets, agents
# written for OpenAI's API, OpenEnv's client, and the reference servers of MCP (with Node.js), in an environment of its own
test-clients: .venv-clients/.ready
	.venv-clients/bin/python -m pytest -m clients tests/clients

.venv-clients/.ready: requirements-clients.txt requirements-mcp-servers.txt pyproject.toml
	sh scripts/install_node.sh
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-clients.txt
	.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target .venv-clients/datasets-3.6 datasets==3.6.0 dill==0.3.8 multiprocess==0.70.16 fsspec==2025.3.0
	.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target .venv-clients/datasets-4.5 datasets==4.5.0 dill==0.4.0 multiprocess==0.70.18 fsspec==2025.10.0
	npm install --silent --no-audit --no-fund --no-save --prefix .venv-clients $$(grep -v '^#' requirements-mcp-servers.txt)
	.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
