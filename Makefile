# Thin, named targets. What needs logic is a test (tests/it/tidy/) or a script (scripts/).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# How often `make chaos` kills, freezes and cuts in each fault test that counts its rounds.
CHAOS_ROUNDS ?= 200

# Random requests of `make fuzz`.
FUZZ_REQUESTS ?= 100000

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all

.PHONY: fmt-check
fmt-check: ## Fail if the code is not formatted
	cargo fmt --all --check

.PHONY: lint
lint: ## Clippy on every target, warnings denied
	cargo clippy --locked --workspace --all-targets -- -D warnings

.PHONY: test
test: ## Every test; first installs what the tests need
	scripts/test-deps.sh
	scripts/cargo-test.sh

.PHONY: quick
quick: fmt-check lint ## Format, lint, unit tests and tidy: before each commit
	cargo test --workspace --lib
	cargo test --test it tidy::

.PHONY: bench
bench: ## Measure against the goals and print the table
	cargo run --profile dist -p floodgate-bench -- --table

.PHONY: run
run: ## The server: memory tier, ledger in ./floodgate.db
	cargo run --release -- serve

.PHONY: demo
demo: ## A sale with a crowd, then the server until Ctrl-C
	cargo run --release -- demo

.PHONY: chaos
chaos: ## The fault tests, with CHAOS_ROUNDS rounds
	scripts/test-deps.sh
	NEXTEST_PROFILE=chaos FLOODGATE_CHAOS_ROUNDS=$(CHAOS_ROUNDS) scripts/cargo-test.sh faults::

.PHONY: fuzz
fuzz: ## FUZZ_REQUESTS random requests, sound and broken, on both listeners
	FLOODGATE_FUZZ_REQUESTS=$(FUZZ_REQUESTS) scripts/cargo-test.sh http::fuzz::

.PHONY: dist
dist: ## The optimised program with manuals, checksums and bill of materials, in target/package/
	scripts/dist.sh

.PHONY: figures
figures: ## Sizes next to their limits
	scripts/figures.sh

.PHONY: doc
doc: ## Build the documentation, warnings denied
	RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --no-deps

.PHONY: deny
deny: ## Licences, bans, sources and known vulnerabilities of every dependency
	scripts/deny.sh

.PHONY: ci
ci: fmt-check lint test doc deny ## What has to pass before a merge
