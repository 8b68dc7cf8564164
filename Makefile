# What a developer does here, one word each. `make` alone tells them.

# Outside the checkout, so that a fresh clone does not build everything again.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/leasehold/target
# A build needs no database: the checked queries lie in .sqlx.
export SQLX_OFFLINE ?= true
export PATH := $(HOME)/.cache/leasehold/bin:$(PATH)

BIN = $(CARGO_TARGET_DIR)/debug

.PHONY: help demo dev build test check fmt fit lint doc sqlx sqlx-check deny bench mutants soak ci tools

help:
	@echo "make demo      an instance moved there and back, then a storm over the queue, from nothing to their proofs"
	@echo "make dev       the whole stack on this machine until Ctrl-C: http://127.0.0.1:7070"
	@echo "make test      every test, from nothing"
	@echo "make check     layout, lints, docs, queries, licences"
	@echo "make sqlx      after SQL or a migration changed: check the queries again and keep what was learnt in .sqlx"
	@echo "make bench     the figures of the queue, of the mirror and of moves, printed (a release build, then more than an hour)"
	@echo "make mutants   takes each guard away in turn and wants its test to fail"
	@echo "make soak      the races that chance decides, a thousand times each instead of fifty; the models within wider bounds"
	@echo "make ci        what CI does: test and check, on a machine that has nothing yet"

build:
	cargo build --locked

demo: build
	$(BIN)/leasehold demo

dev: build
	$(BIN)/leasehold dev

# PostgreSQL, and the pinned servers that the tests run.
tools:
	.ci/install test

test: tools
	cargo build --locked --workspace --bins
	$(BIN)/sandbox-exec fetch litestream weed
	cargo nextest run --locked --workspace

check: fmt fit lint doc sqlx-check deny

fmt:
	cargo fmt --all --check

# The mutants' patches still apply.
fit:
	.ci/mutants --fit

lint:
	cargo clippy --locked --workspace --all-targets --all-features -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

sqlx:
	.ci/sqlx write

sqlx-check:
	.ci/sqlx check

deny:
	.ci/install check
	cargo deny --locked check licenses bans sources

bench: export LEASEHOLD_LAUNCHER = $(CARGO_TARGET_DIR)/release/sandbox-exec
# The mirror's stand is SeaweedFS, which sandbox-exec starts and fetches.
bench:
	cargo build --locked --release -p leasehold-bench -p leasehold-sandbox -p leasehold --bins
	$(CARGO_TARGET_DIR)/release/sandbox-exec fetch weed
	$(CARGO_TARGET_DIR)/release/queue
	$(CARGO_TARGET_DIR)/release/situations
	$(CARGO_TARGET_DIR)/release/latency
	$(CARGO_TARGET_DIR)/release/mirror
	$(CARGO_TARGET_DIR)/release/mirror --fake-keys 1000000
	$(CARGO_TARGET_DIR)/release/moves --leasehold $(CARGO_TARGET_DIR)/release/leasehold

mutants: tools
	.ci/mutants

TRIALS ?= 1000

soak: export LEASEHOLD_TRIALS = $(TRIALS)
soak: export LEASEHOLD_MODEL_CASES = $(TRIALS)
# A gibibyte.
soak: export LEASEHOLD_BALLAST_MIB = 1024
# A trial takes about a tenth of a second, some of them three: the ordinary limit of a test's time is not theirs.
soak: tools
	cargo build --locked --workspace --bins
	$(BIN)/sandbox-exec fetch litestream weed
	cargo nextest run --locked -p leasehold-tests --profile soak -E 'test(trials::) | test(at_any_byte) | test(random_histories) | test(breaks_a_promise) | test(many_megabytes)'

ci:
	.ci/run
