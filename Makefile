# The commands a newcomer needs. `make demo` shows the product, `make test` is what CI runs.
.PHONY: audit pictures slice mutants tp32 rxe docs man release compiled changes simulate fuzz chaos gpu long prepared help setup check lint types unit test demo demo-down bench contract golden clean
.DEFAULT_GOAL := help

BIN := .venv/bin

help: ## these lines
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: ## .venv with everything; Debian packages that are lacking
	@scripts/setup.sh

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	shellcheck scripts/*.sh .ci/run inventory/stacks/*.recipe/*.sh
	$(BIN)/ansible-lint --offline -q playbooks

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not lab and not engine and not processes" tests lab/tests

check: lint types unit ## lint, types and unit tests

test: setup ## everything that CI runs, with the lab and the real engine
	@$(MAKE) --no-print-directory -j2 -O lint types compiled
	@scripts/test.sh

compiled: setup # the tests once, before several workers compile all of them at the same time; errors are shown there
	-@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -qq --collect-only tests lab/tests >/dev/null

demo: ## an emulated 32-GPU cluster, serving; without root: `doctor`
	@scripts/demo.sh

demo-down: ## stop the demo's gang and remove its lab
	@scripts/demo.sh down

chaos: setup ## every row of the chaos table, in a lab of its own
	$(BIN)/python -m tests.chaos.chaos

long: setup ## all of what `make test` plays a part of; hours
	TURN=all MOMENTS=200 $(BIN)/python -m pytest -q -n 4 --maxschedchunk 1 -rP tests/lab/test_interrupted.py
	TURN=all $(BIN)/python -m pytest -q -n 4 --dist loadfile -m "turns and not installs and not long" tests lab/tests
	TURN=all ALL_SAMPLES=1 DEATHS=500 $(BIN)/python -m pytest -q -n 2 --dist loadfile tests/simulation tests/fuzz
	TURN=all ALL_SAMPLES=1 $(BIN)/python -m pytest -q -n 4 --dist loadfile -m hypothesis tests/unit
	TURN=all $(BIN)/python -m pytest -q tests/unit/cli/test_broken_homes.py
	$(BIN)/python -m tests.chaos.chaos --two-faults 300
	TURN=all SOAK_S=600 $(BIN)/python -m pytest -q -rP -m long tests

gpu: setup ## on 2 or more NVIDIA GPUs, with a real engine
	$(BIN)/python -m tests.gpu

slice: setup ## a DeepSeek-V3 of full depth on 4 GPUs; NODES=4 GPUS=1
	$(BIN)/python -m tests.slice --nodes $(or $(NODES),4) --gpus $(or $(GPUS),1) --parts "$(PARTS)"

tp32: setup ## 32 ranks of the real SGLang on CPU: kills, hangs, restarts
	$(BIN)/python -m tests.tp32 --ranks $(or $(RANKS),8) --nodes $(or $(NODES),4) --steps "$(STEPS)"

rxe: setup ## real RDMA verbs, by soft-RoCE in QEMU machines
	$(BIN)/python -m tests.rxe

prepared: setup ## the CPU stack and 0.4.4, built and installed by `prepare`
	$(BIN)/python -m pytest -q -m installs tests

bench: setup ## the figures of the README, against a peer in the same run
	$(BIN)/python benchmarks/run.py

fuzz: setup ## odd files, secrets and lies; prints the seed of a finding
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.fuzz --target forged

audit: setup ## known vulnerabilities of what is installed or locked
	@$(BIN)/python -c 'import pip_audit' 2>/dev/null || $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[audit]' || true
	$(BIN)/python scripts/audit.py

mutants: setup ## 500 small faults in the code: which ones unit tests notice
	$(BIN)/cosmic-ray --version >/dev/null 2>&1 || $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[mutants]'
	$(BIN)/python -m tests.mutants

changes: setup ## what is changed between a start and the next verb
	$(BIN)/python -m tests.changes

simulate: setup ## the agents' code on a simulated clock, network and disk
	$(BIN)/python -m tests.simulation

contract: setup ## stand-in and real engines held to one contract; an hour
	$(BIN)/python -m tests.contract

golden: setup ## rewrite the golden cases; read the diff as a review
	UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/golden

man: setup ## dist/man/l40s-deploy.1, from the same parsers as --help
	mkdir -p dist/man
	$(BIN)/argparse-manpage --module orchestrator.cli.main --function every_parser --project-name l40s-deploy \
	  --prog l40s-deploy --description "one very large model on PCIe GPU servers" --output dist/man/l40s-deploy.1

docs: setup ## dist/site: guides and reference, English and Chinese
	$(BIN)/mkdocs --version >/dev/null 2>&1 || $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

pictures: setup ## the README's pictures, drawn anew
	$(BIN)/python scripts/picture.py

release: setup ## dist/: wheels, sdists, SHA256SUMS and SBOM
	$(BIN)/python scripts/release.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
