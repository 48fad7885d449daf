#!/usr/bin/env bash
# Runs the tests whose names contain one of the given words (every test if there are none): with
# cargo-nextest if it is installed, else with `cargo test`.
set -euo pipefail
# Debian installs servers there; the PATH of an ordinary user lacks it.
PATH+=:/usr/local/sbin:/usr/sbin:/sbin

if ! command -v cargo-nextest >/dev/null; then
  exec cargo test --locked --workspace --no-fail-fast -- "$@"
fi
if (($# == 0)); then
  # nextest does not run the examples in the documentation.
  cargo test --locked --workspace --doc
fi
# Many tests wait for servers: two for each core.
exec cargo nextest run --locked --workspace --test-threads "$((2 * $(nproc)))" "$@"
