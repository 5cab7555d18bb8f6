# `make` alone lists the targets. `setup` runs first and installs only what is missing.

# Flags for the demo, the bench, the arena and the fault suite, for example: make demo ARGS='--once --requests 1000'
ARGS ?=

# rustup puts cargo here; a shell that was open before does not have it on its PATH.
export PATH := $(PATH):$(HOME)/.cargo/bin

# Build scripts that call make must not inherit the flags of this make.
CARGO := env -u MAKEFLAGS cargo

# `cargo run` finds the program also with CARGO_TARGET_DIR, and replaces itself by it. With the same `--package` it
# compiles the same features each time, so nothing is compiled twice.
LAB := $(CARGO) run --release --locked --package lab

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-all test-build test-lock test-demo test-idle test-rest test-seeds deny semver bench arena chaos simulate mutants screenshots clean

help: ## list the targets
	@echo "A flash sale that sells no unit twice."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s  %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Flags for demo, bench, arena, chaos, simulate and mutants: make demo ARGS='--once --lock no-lock' (ARGS=--help lists them)"
	@echo "A target that fails ends with status 2. 'demo --once' itself ends with 0 (PASS), 1 (FAIL) or 2 (could not run)."

setup: ## install what this machine lacks for the build, the demo and the tests
	@.ci/setup

build: setup ## build all programs, optimised, in target/release
	@$(CARGO) build --release --locked --workspace --bins

# `exec`: a signal to the child of make reaches the program, not a shell around it.
demo: setup ## start everything on this machine, sell out under load, print the verdict
	@[ -x "$(or $(CARGO_TARGET_DIR),target)/demo/demo" ] || \
	  echo "building the demo, the first time only: 2 to 4 minutes with 2 cores"
	@exec $(CARGO) run --profile demo --locked --package demo -- $(ARGS)

# Tools that one target each needs.
TOOLS := $(abspath $(or $(CARGO_TARGET_DIR),target))/tools

# Many tests wait, for TTLs or for servers, so one more of them runs at a time than there are cores. More would be late.
TEST_THREADS := $(shell echo $$((1 + $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1))))

# One set of features for lints, docs and tests, so that each dependency is compiled once: every backend of the lock.
ALL := --locked --workspace --features fenced-lock/etcd-tls,fenced-lock/metrics,fenced-lock/postgres-tls,fenced-lock/redis-tls,fenced-lock/serde,fenced-lock/zookeeper-tls

# Every package but the simulator, whose model changes the features of dependencies: these would compile twice.
TEST := $(CARGO) test --no-fail-fast $(ALL) --exclude simulator

# Optimised, in a profile of its own.
SIMULATOR := $(CARGO) test --locked --profile simulate --package simulator
SIMULATE := $(SIMULATOR) --test simulate

# Programs from which safeguards can be removed: the fault suite shows that each is needed.
# The flag is there once, also in a make that this one starts: with other flags cargo compiles every dependency again.
CHAOS := --cfg fenced_lock_chaos
test-build test-lock test-demo test-idle test-rest test-seeds chaos simulate mutants: export RUSTFLAGS := $(strip $(subst $(CHAOS),,$(RUSTFLAGS)) $(CHAOS))
test-rest: export RUSTDOCFLAGS := -D warnings $(CHAOS)

# Make takes its job server out of MAKEFLAGS for a recipe, and leaves it in MFLAGS: cargo would warn of it.
unexport MFLAGS

test: ## check format, lints, docs and licences, then run every test (they start their own servers)
	@.ci/setup --test
	@echo "== format"
	@$(CARGO) fmt --all --check
	@echo "== lints, with every way to remove a safeguard"
	@# the flag for the workspace alone: the lints at the end of `test-all` use the same dependencies
	@$(CARGO) clippy $(ALL) --all-targets -- -D warnings $(CHAOS)
	@echo "== docs"
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(ALL) --no-deps
	@echo "== tests"
	@$(MAKE) --no-print-directory test-build
	@$(MAKE) --no-print-directory --jobs 3 test-lock test-demo test-idle test-rest
	@$(MAKE) --no-print-directory test-seeds
	@echo "== all passed: format, lints, docs, tests, doctests"

test-build:
	@$(TEST) --no-run

# Tests whose server is not installed are left out, and say so; where CI is set, they fail. Two jobs of tests run side by side,
# beside `test-idle`: two keep all cores busy, and three make each other late.
test-lock:
	@$(TEST) --test lock -- --test-threads $(TEST_THREADS)

# The tests of the page are left out where .ci/setup can install no browser, unless CI is set.
test-demo:
	@[ -n "$$CI" ] || command -v chromedriver >/dev/null || left_out="--skip page::"; \
	  $(TEST) --test demo -- $$left_out

test-rest:
	@$(TEST) --lib --bins --test servers --test service -- --test-threads $(TEST_THREADS)
	@$(TEST) --doc
	@$(TEST) --test lab

# What the tests leave of the cores builds the simulator. Licences are left out where their tool is missing, unless `test-all` asks.
test-idle:
	@nice -n 19 $(SIMULATOR) --test model --test simulate --no-run
	@if [ -n "$$LICENCES" ] || command -v cargo-deny >/dev/null || [ -x $(TOOLS)/bin/cargo-deny ]; then \
	  nice -n 19 $(MAKE) --no-print-directory deny; \
	  else echo "== dependencies: left out without cargo-deny (make deny builds it)"; fi

# Behind the others: it takes all cores, and they measure time.
test-seeds:
	@$(SIMULATOR) --test model
	@$(SIMULATE) -- --seeds 2000
	@$(SIMULATE) -- --controls

test-all: export LICENCES := checked
test-all: test ## the tests, the licences, and the lints of the first command, which has the fewest features
	@echo "== lints, as the first command builds it"
	@$(CARGO) clippy --locked --package demo --lib --bins -- -D warnings

# Advisories need the network; licences, bans and sources do not. Where cargo-deny is missing, it is built in `target`, without
# optimisation: that takes a fraction of the time, and the check takes some seconds either way.
deny: ## check the licences and sources of all dependencies
	@echo "== dependencies: licences, bans, sources"
	@command -v cargo-deny >/dev/null || [ -x $(TOOLS)/bin/cargo-deny ] || \
	  { echo "building cargo-deny, once: a minute or two" && $(CARGO) install --quiet --debug --locked --root $(TOOLS) cargo-deny@0.20.2; }
	@PATH="$(TOOLS)/bin:$$PATH" $(CARGO) deny --locked check --allow duplicate licenses bans sources

BASE ?= HEAD
semver: setup ## compare the lock's interface with an earlier revision's: make semver BASE=main (builds its tool once)
	@command -v cargo-semver-checks >/dev/null || [ -x $(TOOLS)/bin/cargo-semver-checks ] || \
	  { echo "building cargo-semver-checks, once: some minutes" && $(CARGO) install --quiet --debug --locked --root $(TOOLS) cargo-semver-checks@0.51.0; }
	@PATH="$(TOOLS)/bin:$$PATH" $(CARGO) semver-checks --package fenced-lock --baseline-rev $(BASE)

bench: setup ## compare the guards of a sale; tables in target/bench (about half an hour)
	@exec $(LAB) -- bench $(ARGS)

arena: setup ## compare locks: speed, fairness, cost, and what each fault does to them (about an hour)
	@.ci/setup --test
	@exec $(LAB) -- arena $(ARGS)

screenshots: ## make the pictures and the recording of docs/page (needs pngquant, webp, and ports 8080, 8090 and 8100)
	@.ci/setup --test
	@command -v pngquant img2webp >/dev/null || { echo "missing: apt-get install pngquant webp" >&2; exit 2; }
	@rm -f target/screenshots/frame-*.png
	@$(CARGO) test --release --locked --package demo --test demo -- --ignored --exact page::pictures::pictures_of_the_readme
	@cd target/screenshots && img2webp frames.txt && pngquant --force --strip --speed 1 --output oversold.png readme-no-lock.png
	@cp target/screenshots/sale.webp target/screenshots/oversold.png target/screenshots/replay.html docs/page
	@ls -l docs/page

# In a target directory of its own: this program can sell without safeguards and must not be mistaken for the shipped one.
# CHAOS_SECONDS and CHAOS_SEED are read from the environment.
chaos: setup ## inject every fault under load and check that nothing is lost (about fifteen minutes)
	@exec $(LAB) --target-dir target/with-chaos -- chaos $(ARGS)

simulate: setup ## simulate the lock and the sale with faults from seeds, until stopped (ARGS='--seed 4711' shows one again)
	@exec $(SIMULATE) -- $(or $(ARGS),--endless)

# Every mutant is built for itself, in a copy of this directory.
mutants: setup ## change one thing at a time in lock and combiner: is it noticed? (days; ARGS='--shard 0/200' is one part)
	@command -v cargo-mutants >/dev/null || [ -x $(TOOLS)/bin/cargo-mutants ] || \
	  { echo "building cargo-mutants, once: about two minutes" && $(CARGO) install --quiet --debug --locked --root $(TOOLS) cargo-mutants@27.1.0; }
	@PATH="$(TOOLS)/bin:$$PATH" SIMULATE_SEEDS=300 $(CARGO) mutants --workspace --output target $(ARGS)

clean: ## remove everything that was built
	@$(CARGO) clean
