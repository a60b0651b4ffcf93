# `make help` lists the targets. The first run of a target installs its dependencies: Debian packages, and Python
# packages in the virtual environment .venv.
PYTHON ?= python3
VENV := .venv
BUILD := build
# CI treats warnings as errors: make WERROR=ON ...
WERROR ?= OFF
# Several sources of the library, and of its tests, are compiled at a time, which takes half the time. With
# `make UNITY=OFF ...` a change of one source compiles that source alone.
UNITY ?= ON
# CI runs the unit tests that run no kernel in `make sanitize` alone: make HOST_TESTS=OFF test
HOST_TESTS ?= ON

# With ccache the test of the wheel does not compile the same files again. The wheel is built in another folder, where
# ccache finds them because it takes paths below this directory as relative ones.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
launcher := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

in_venv := $(VENV)/bin
python := $(in_venv)/python

.PHONY: help demo rag memory sanitize tsan soak test test-cpp test-python test-vllm test-vllm-v2 vllm-bench mutate compile-all docs lint format wheels first-hour clean distclean build build-tests layers
.DEFAULT_GOAL := help

help:  ## show this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 13

demo: build $(VENV)/.demo $(VENV)/.test  ## compile the kernels of three models, and run some: on a GPU, or in the emulator
	$(python) tools/demo.py

rag: build $(VENV)/.rag  ## a real model answers from documents: checks and times, in tables and build/rag.html
	$(python) -m tools.rag --json $(BUILD)/rag.json --page $(BUILD)/rag.html

# Ten texts take about an hour of one core. A run completes the file: it skips the texts that the file has.
memory: build $(VENV)/.rag  ## the cost of memories of a document in a real model's output: tables of five seeds
	$(python) -m tools.memory --json $(BUILD)/memory.json

# C++ and Python tests run at the same time. The Python tests have two processes, because one leaves a core idle half of
# the time.
test: build-tests layers $(VENV)/.rag  ## the tests: C++, Python (on a GPU, or samples of the longest in the emulator), layering
	@$(MAKE) --no-print-directory --jobs=2 test-cpp test-python

# A test of ctest is a suite: one process that runs several tests.
test-cpp:
	@echo "C++ tests: $(BUILD)/ctest.log"
	@ctest --test-dir $(BUILD) --output-on-failure -j$$(nproc) > $(BUILD)/ctest.log 2>&1 || { cat $(BUILD)/ctest.log; exit 1; }
	@sed -n '/ tests passed, /p; /^Total Test time/p' $(BUILD)/ctest.log
	@awk '/^\[  PASSED  \]/ {passed += $$4} /^\[  SKIPPED \].* ms\)$$/ {++skipped} \
	  END {print passed + 0 " tests of these suites passed, " skipped + 0 " were skipped"}' $(BUILD)/Testing/Temporary/LastTest.log

test-python:
	LAZYROPE_COMMAND=$(CURDIR)/$(in_venv)/lazyrope $(python) -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder

# CI runs the first two of these files: each start of a server, and of another engine, takes long. On the CPU, PyTorch would
# compile vLLM's sampler with a C++ compiler, for longer than most tests take.
VLLM_TESTS ?= $(addprefix tests/python/test_vllm,.py _recovery.py _schedules.py _server.py _ranks.py)
test-vllm: build $(VENV)-vllm/.vllm  ## documents inside a real vLLM on the CPU, in an environment of its own (1.2 GB)
	TORCH_COMPILE_DISABLE=1 PYTHONPATH=$(BUILD)/package $(VENV)-vllm/bin/python -m pytest $(VLLM_TESTS)

# The server of test_vllm_server.py and the ranks of test_vllm_ranks.py are other processes, without an interpreter.
test-vllm-v2: build $(VENV)-vllm/.triton  ## the same with vLLM's V2 model runner, whose kernels Triton interprets (another 0.6 GB)
	PYTHONPATH=$(BUILD)/package:$(VENV)-vllm/triton $(VENV)-vllm/bin/python -m pytest -p tests.support.interpreted_triton \
	  $(filter-out %_server.py %_ranks.py,$(VLLM_TESTS))

# It needs a GPU, and vLLM in the environment of PYTHON_VLLM. A run completes the file: it skips the cells that it has.
PYTHON_VLLM ?= $(python)
vllm-bench: build  ## vLLM over documents: stock, with copies, with shared documents, into tests/gpu/results/vllm.json
	PYTHONPATH=$(BUILD)/package:. $(PYTHON_VLLM) -m tools.vllm_bench --json tests/gpu/results/vllm.json

# tests/soak.md has the results: append the lines of build/soak/summary.md.
soak: build-tests $(VENV)/.rag  ## all mutants, races of threads, all parameters, vLLM and more random steps than CI has time for: an hour or more
	LAZYROPE_COMMAND=$(CURDIR)/$(in_venv)/lazyrope PYTHON=$(python) BUILD=$(BUILD) tests/soak.sh

mutate: build $(VENV)/.test  ## remove or weaken each wait, fence and barrier of the kernels: tests/mutation/results.csv
	$(python) -m tests.mutation --keep

compile-all: $(BUILD)/build.ninja  ## compile every registry row for every arch into tests/compile/results: minutes on 16 cores
	cmake --build $(BUILD) --target compile_all
	$(BUILD)/tests/compile_all

# The sanitizers find errors in the host's code; compute-sanitizer checks the kernels (tests/gpu/run --sanitizer).
# Alignment alone takes a quarter of the time to compile. `make soak` runs all of these checks but vptr.
NOT_SANITIZED ?= alignment,null,object-size,pointer-overflow,vptr
sanitize: $(VENV)/.build  ## unit tests with AddressSanitizer and UndefinedBehaviorSanitizer
	@$(call sanitized,sanitize,address$(comma)undefined,-g1,-DLAZYROPE_NOT_SANITIZED=$(NOT_SANITIZED))

# Fibers need annotations for ThreadSanitizer, so this build has no emulator.
tsan: $(VENV)/.build  ## unit tests with ThreadSanitizer
	@$(call sanitized,tsan,thread,-O1 -g1,-DLAZYROPE_EMULATOR=OFF)

comma := ,
# $(call sanitized,FOLDER,SANITIZERS,COMPILER OPTIONS,CMAKE OPTIONS)
define sanitized
cmake -S . -B $(BUILD)/$1 -G Ninja -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=$3" -DCMAKE_UNITY_BUILD=ON $(launcher) \
  -DLAZYROPE_SANITIZE=$2 -DLAZYROPE_BUILD_TOOLS=OFF -DPython_EXECUTABLE=$(CURDIR)/$(python) $4 > /dev/null && \
cmake --build $(BUILD)/$1 --target unit_tests && \
$(MAKE) --no-print-directory test-cpp BUILD=$(BUILD)/$1
endef

# The command line's page has the help texts if the command is built. The variable stops an advertisement.
docs: $(VENV)/.docs  ## build the documentation into build/site, with warnings as errors
	NO_MKDOCS_2_WARNING=1 $(in_venv)/mkdocs build --strict --quiet --config-file python/docs/site/mkdocs.yml
	@echo "documentation: $(BUILD)/site/index.html"

lint: build-tests layers $(VENV)/.lint  ## clang-format, clang-tidy, ruff, mypy, the language of comments
	VENV=$(VENV) BUILD=$(BUILD) tools/lint.sh

format: $(VENV)/.lint  ## format C++ and Python in place
	VENV=$(VENV) tools/lint.sh --fix

# The check of a wheel runs the README's example if PyTorch is in the environment.
wheels: $(VENV)/.wheels  ## build an sdist, and a wheel for each Python of this machine, in dist/, and check them
	$(python) -m tools.make_wheels

# It needs root and debootstrap. The logs are in build/first-hour.
first-hour: $(VENV)/.build  ## walk the first hour of a new user on a fresh Debian 12, with the time of every step
	$(python) -m tools.first_hour

clean:  ## remove everything that was built
	rm -rf $(BUILD) .wheel dist .pytest_cache .ruff_cache .mypy_cache

distclean: clean  ## also remove the virtual environments
	rm -rf $(VENV) $(VENV)-vllm

build: $(BUILD)/build.ninja
	cmake --build $(BUILD) --target _core lazyrope
	@$(into_venv)

build-tests: $(BUILD)/build.ninja
	cmake --build $(BUILD)
	@$(into_venv)

# The environment's python imports the package from the build tree. The command is copied beside that python, where it
# finds the environment's NVRTC.
define into_venv
cp $(BUILD)/tools/lazyrope $(in_venv)/ && echo $(CURDIR)/$(BUILD)/package > \
  $$($(python) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lazyrope.pth
endef

layers:
	$(PYTHON) tools/check_layers.py

options := $(BUILD)/.options-$(WERROR)-$(UNITY)-$(HOST_TESTS)
$(BUILD)/build.ninja: $(VENV)/.build $(options)
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DLAZYROPE_BUILD_PYTHON=ON \
	  -DLAZYROPE_WERROR=$(WERROR) -DCMAKE_UNITY_BUILD=$(UNITY) -DLAZYROPE_HOST_TESTS=$(HOST_TESTS) $(launcher) \
	  -DPython_EXECUTABLE=$(CURDIR)/$(in_venv)/python

# Configures again if an option has changed.
$(options):
	@mkdir -p $(BUILD) && rm -f $(BUILD)/.options-* && touch $@

$(VENV)/.demo $(VENV)/.test $(VENV)/.lint $(VENV)/.wheels: $(VENV)/.build
$(VENV)/.rag: $(VENV)/.test tools/requirements/rag-no-deps.txt
$(VENV)/.%: tools/requirements/%.txt tools/set_up.sh
	@PYTHON=$(PYTHON) tools/set_up.sh $(VENV) $*
	@touch $@

$(VENV)-vllm/.vllm: $(VENV)/.rag tools/requirements/vllm.txt tools/set_up_vllm.py
	@echo "set-up: vLLM in $(VENV)-vllm"
	@$(python) tools/set_up_vllm.py $(VENV)-vllm
	@touch $@

$(VENV)-vllm/.triton: $(VENV)-vllm/.vllm tools/requirements/triton.txt
	@echo "set-up: Triton in $(VENV)-vllm/triton"
	@$(python) -m pip install --quiet --no-deps --no-compile --upgrade --target $(VENV)-vllm/triton \
	  --requirement tools/requirements/triton.txt
	@touch $@
