# `make` alone lists what there is. The set-up runs first and installs only what is missing.

# Read by the demo, the bench and the fault suite, for example: make demo ARGS='--once --requests 1000'
ARGS ?=

# rustup puts cargo here; the shell that has just installed it may not look there yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

# A build script that calls make shall not get this make's flags.
CARGO := env -u MAKEFLAGS cargo

# Cargo knows where it built the program, wherever that is (CARGO_TARGET_DIR), and becomes it.
RUN := $(CARGO) run --quiet --release --locked --package lab

.DEFAULT_GOAL := help
.PHONY: help setup build demo test bench chaos screenshots clean

help: ## list the targets
	@echo "A flash sale that sells no unit twice."
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s  %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "The demo, the bench and chaos take flags: make demo ARGS='--once --lock none' (all: ARGS=--help)"

setup: ## install what the build, the demo and the tests need and this machine lacks
	+@.ci/setup

build: setup ## build the three programs, optimised: flash-sale, loadtest, lab
	+@$(CARGO) build --release --locked --workspace --bins

# The status of the demo and of chaos says how it went: 0 as it should, 1 it did not, 2 it could not be tried. make
# answers 2 for whatever fails below it, except in question mode (-q), in which a status of 1 is passed on.
# Question mode runs nothing but the lines that begin with a +, so all lines on the way have one.
ifneq ($(filter $(MAKECMDGOALS),demo chaos),)
MAKEFLAGS += -q
endif

# The recipe ends in `exec`, so that a signal sent to make reaches the demo and not a shell around it.
demo: build ## start everything on this machine, sell out under load, say how it went
	+@exec $(RUN) -- demo $(ARGS)

# What needs a browser; left out where .ci/setup knows of none.
PAGE_TESTS := accessibility looks outages selling

test: ## check format, lints and docs, then run every test (they start their own etcd and Redis)
	@.ci/setup --test
	@echo "== format"
	@$(CARGO) fmt --all --check
	@echo "== lints, as it is shipped and with every way to take a defence away"
	@$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	@echo "== docs"
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --all-features
	@echo "== lock, service and load test, as they are shipped"
	@$(CARGO) test --locked --no-fail-fast --workspace --exclude lab
	@echo "== the laboratory, with every way to take a defence away"
	@$(CARGO) test --locked --features chaos --lib -- chaos:: config:: defence::
	@command -v chromedriver >/dev/null || left_out="-- $(PAGE_TESTS:%=--skip page::%)"; \
	  $(CARGO) test --locked --no-fail-fast --package lab --all-features $$left_out
	@echo "== all passed: format, lints, docs, tests, doctests"

bench: build ## measure the sale beside others in rounds; tables, and plots in target/bench (some minutes)
	+@exec $(RUN) -- bench $(ARGS)

screenshots: ## make the pictures of the page for the README (needs pngquant, and ports 8080 and 8090)
	@.ci/setup --test
	@command -v pngquant >/dev/null || { echo "pngquant is missing: apt-get install pngquant" >&2; exit 2; }
	@$(CARGO) test --release --locked --package lab --test it -- --ignored --exact page::pictures::pictures_of_the_readme
	@mkdir -p docs/page
	@for name in sale oversold; do \
	  pngquant --force --strip --speed 1 --output docs/page/$$name.png target/screenshots/readme-$$name.png; \
	done
	@ls -l docs/page

# A directory of its own: its program can be told to sell what it does not have, and must not be taken for
# the one that is shipped. CHAOS_SECONDS and CHAOS_SEED are read from the environment, or after `make`.
chaos: setup ## break everything under load, and show that nothing is lost (some minutes)
	+@$(CARGO) build --release --locked --package lab --features chaos --target-dir target/with-chaos
	+@exec $(RUN) --features chaos --target-dir target/with-chaos -- chaos $(ARGS)

clean: ## remove everything that was built
	@$(CARGO) clean
