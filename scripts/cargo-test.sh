#!/usr/bin/env bash
# Runs the tests whose names contain one of the given words (every test without words): with
# cargo-nextest where it is installed, with `cargo test` elsewhere.
set -euo pipefail

if ! command -v cargo-nextest >/dev/null; then
  exec cargo test --locked --workspace --no-fail-fast -- "$@"
fi
if (($# == 0)); then
  # nextest leaves out the examples in the documentation.
  cargo test --locked --workspace --doc
fi
exec cargo nextest run --locked --workspace "$@"
