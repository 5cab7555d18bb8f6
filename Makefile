# `make` alone lists what there is. The set-up runs first and installs only what is missing.

# Read by the demo alone, for example: make demo ARGS='--once --requests 1000'
ARGS ?=

# rustup puts cargo here; the shell that has just installed it may not look there yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
.PHONY: help setup build demo test clean

help: ## list the targets
	@echo "A flash sale that sells no unit twice."
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s  %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "The demo takes flags: make demo ARGS='--once --lock none' (all: ARGS=--help)"

setup: ## install what the build, the demo and the tests need and this machine lacks
	@.ci/setup

build: setup ## build both programs, optimised
	@cargo build --release --locked --bins

# The recipe ends in `exec`, so that a signal sent to make reaches the demo and not a shell around it.
# make answers 2 for whatever fails below it and names the status itself ("Error 1": the sale went wrong).
# A script that must tell the two apart runs target/release/flash-sale demo.
demo: build ## start everything on this machine, sell out under load, say how it went
	@exec target/release/flash-sale demo $(ARGS)

test: ## check format, lints and docs, then run every test (they start their own etcd and Redis)
	@.ci/setup --lint
	@echo "== format"
	@cargo fmt --all --check
	@echo "== lints"
	@cargo clippy --locked --all-targets -- -D warnings
	@echo "== docs"
	@RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
	@echo "== tests, doctests last"
	@cargo test --locked --no-fail-fast
	@echo "== all passed: format, lints, docs, tests, doctests"

clean: ## remove everything that was built
	@cargo clean
