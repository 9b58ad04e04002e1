# Two commands matter: `make repro` runs the pipeline, `make test` runs every check. Both set up what they need. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
STAMP := $(VENV)/.installed
DAYS ?= 7
SCALE = $(if $(NAME),params/$(NAME).yaml)
# `python` in dvc.yaml must be the environment's.
export PATH := $(BIN):$(PATH)
# Threads that wait for each other sleep instead of spinning: on busy cores that is many times faster, on idle ones no slower.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help install repro test test-extended preset snapshot sensitivity publish bundle bench report clean-scratch

help:
	@echo "make repro            set up, then run the pipeline: reports/index.html"
	@echo "make test             set up, then lint, types, import contracts and tests"
	@echo "make test-extended    the slow behavioural and fault tests"
	@echo "make preset NAME=x    put params/x.yaml (smoke, full, paper, photos, tasks/...) or the committed default in the place of params.yaml"
	@echo "make snapshot NAME=x  run params/x.yaml in a separate checkout; keep its results in reports/snapshots/x"
	@echo "make sensitivity      run params/sensitivity.yaml and its variants, one value changed at a time: reports/sensitivity/results.json"
	@echo "make publish REMOTE=x push the outputs to a folder or URL"
	@echo "make bundle           pack the outputs into faithline-store.tar, for reviewers without a remote"
	@echo "make bench            time against peers: benchmarks/results.json"
	@echo "make report           bring the report up to date and say where it is"
	@echo "make clean-scratch    remove unfinished work older than DAYS=$(DAYS) days"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt constraints-fud.txt constraints-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed; set PYTHON=python3.x" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]' -c constraints.txt -c constraints-fud.txt -c constraints-dev.txt
	touch $@

repro: $(STAMP)
	dvc repro

test: $(STAMP)
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	FAITHLINE_THREADS=1 OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile

test-extended: $(STAMP)
	python -m pytest -m extended

preset: $(STAMP)
	@test -n "$(NAME)" || { echo "error: say which: make preset NAME=smoke|full|paper|photos|tasks/<dataset>_<target>|default" >&2; exit 1; }
	@test "$(NAME)" = default || test -f "$(SCALE)" || { echo "error: no preset $(NAME); there are: default $(basename $(patsubst params/%,%,$(wildcard params/*.yaml params/tasks/*.yaml)))" >&2; exit 1; }
	@mkdir -p .scratch
	cp params.yaml .scratch/params.before.yaml
	@case "$(NAME)" in \
	  default) git show HEAD:params.yaml ;; \
	  tasks/*) faithline compose "$(SCALE)" --scale params/paper.yaml ;; \
	  *) cat "$(SCALE)" ;; \
	esac > .scratch/params.next.yaml
	faithline check --params .scratch/params.next.yaml
	mv .scratch/params.next.yaml params.yaml
	@echo "params.yaml is now $(NAME); the old one lies in .scratch/params.before.yaml"

RESULTS = $(addprefix reports/,evaluation curate metrics train plots fud/*.json leaderboard.json findings.json)
# A clone of the commit, so that neither data/ nor dvc.lock of this checkout changes; it shares this checkout's DVC cache. Results
# of the committed run are in git: taken away, so that none of them passes for one of this scale. What ran in the clone before
# stays, with its dvc.lock: results that are not in the cache would have to be made again.
define CLONE
	@git diff --quiet HEAD -- dvc.yaml stages src constraints.txt constraints-fud.txt "$(SCALE)" && git ls-files --error-unmatch "$(SCALE)" >/dev/null || { echo "error: commit first; a $@ run shows what a commit makes" >&2; exit 1; }
	test -d "$(CHECKOUT)/.git" || { git clone -q . "$(CHECKOUT)"; cd "$(CHECKOUT)"; rm -rf $(RESULTS); }
	git -C "$(CHECKOUT)" fetch -q "$(CURDIR)" HEAD
	cd "$(CHECKOUT)"; rm -rf ../kept.tar; tar -cf ../kept.tar dvc.lock $$(ls -d $(RESULTS) 2>/dev/null || true)
	git -C "$(CHECKOUT)" reset -q --hard FETCH_HEAD
	cd "$(CHECKOUT)"; rm -rf $(RESULTS); tar -xf ../kept.tar; rm ../kept.tar
	cp "$(SCALE)" "$(CHECKOUT)/params.yaml"
	cd "$(CHECKOUT)" && dvc cache dir --local "$(CURDIR)/.dvc/cache"
endef

snapshot: CHECKOUT = $(CURDIR)/.scratch/snapshots/$(NAME)
snapshot: $(STAMP)
	@test -n "$(NAME)" && test -f "$(SCALE)" && test "$(SCALE)" = "params/$(notdir $(SCALE))" || { echo "error: say which: make snapshot NAME=smoke|full|paper|photos" >&2; exit 1; }
	$(CLONE)
	cd "$(CHECKOUT)" && dvc repro
	rm -rf "reports/snapshots/$(NAME).partial"
	mkdir -p "reports/snapshots/$(NAME).partial"/{evaluation,curate,fud}
	cp "$(CHECKOUT)"/reports/{leaderboard,findings}.json "reports/snapshots/$(NAME).partial/"
	cp "$(CHECKOUT)"/reports/evaluation/*.json "reports/snapshots/$(NAME).partial/evaluation/"
	cp "$(CHECKOUT)"/reports/curate/*.json "reports/snapshots/$(NAME).partial/curate/"
	find "$(CHECKOUT)/reports/fud" -name '*.json' -exec cp {} "reports/snapshots/$(NAME).partial/fud/" \;
	sum=$$(sha256sum "$(SCALE)" | cut -d' ' -f1); printf '{"name": "%s", "params_sha256": "%s"}\n' "$(NAME)" "$$sum" > "reports/snapshots/$(NAME).partial/snapshot.json"
	rm -rf "reports/snapshots/$(NAME)"
	mv "reports/snapshots/$(NAME).partial" "reports/snapshots/$(NAME)"

# The variants are DVC experiments of a clone. Equal results make an equal commit, on which a second call finds those that finished.
sensitivity: SCALE = params/sensitivity.yaml
sensitivity: CHECKOUT = $(CURDIR)/.scratch/sensitivity/checkout
sensitivity: $(STAMP)
	$(CLONE)
	git -C "$(CHECKOUT)" clean -fdxq data models reports
	cd "$(CHECKOUT)" && dvc repro evaluate
	git -C "$(CHECKOUT)" add --all
	export GIT_{AUTHOR,COMMITTER}_DATE="$$(git log -1 --format=%cI)"; git -C "$(CHECKOUT)" -c user.name=faithline -c user.email=faithline@localhost commit -qm "params/sensitivity.yaml has run"
	cd "$(CHECKOUT)" && PYTHONPATH=src python -m faithline.sensitivity queue
	cd "$(CHECKOUT)" && dvc exp run --run-all
	cd "$(CHECKOUT)" && PYTHONPATH=src python -m faithline.sensitivity collect "$(CURDIR)/reports/sensitivity/results.json"

# The remote is added to .dvc/config.local (not in git) for the time of the push only.
publish: $(STAMP)
	@test -n "$(REMOTE)" || { echo "error: say where: make publish REMOTE=folder-or-url" >&2; exit 1; }
	dvc remote add -q --local -f publish "$(REMOTE)"
	trap 'dvc remote remove -q --local publish' EXIT; dvc push -r publish

bundle: STORE = $(CURDIR)/.scratch/bundle/faithline-store
bundle: $(STAMP)
	rm -rf "$(STORE)"
	mkdir -p "$(STORE)"
	dvc remote add -q --local -f bundle "$(STORE)"
	trap 'dvc remote remove -q --local bundle' EXIT; dvc push -r bundle --no-run-cache
	cp docs/bundle.txt "$(STORE)/README.txt"
	tar -cf .scratch/bundle/faithline-store.tar -C .scratch/bundle faithline-store
	mv .scratch/bundle/faithline-store.tar faithline-store.tar
	rm -rf .scratch/bundle
	@ls -lh faithline-store.tar

bench: $(STAMP)
	PYTHONPATH=src python benchmarks/run.py

report: $(STAMP)
	dvc repro report
	@echo "open reports/index.html"

clean-scratch:
	@if [ -d .scratch ]; then find .scratch -mindepth 2 -maxdepth 2 -mtime +$(DAYS) -print -exec rm -rf {} +; fi
