#!/usr/bin/env bash
# Checks licences, bans, sources and known vulnerabilities of the dependencies with cargo-deny, by
# deny.toml. Says what it could not check, because cargo-deny is not installed or the database of
# advisories cannot be reached, and passes then, so that `make ci` runs on a bare machine;
# DENY=required makes that a failure, for continuous integration with a network.
set -euo pipefail

not_checked() {
  echo "deny: NOT CHECKED: $1" >&2
  [[ ${DENY:-} != required ]]
}

if ! command -v cargo-deny >/dev/null; then
  not_checked 'everything: cargo-deny is not installed (cargo install --locked cargo-deny)'
  exit
fi
cargo deny --locked check bans licenses sources
if ! cargo deny --locked fetch db; then
  not_checked 'advisories: the database https://github.com/rustsec/advisory-db cannot be fetched'
  exit
fi
cargo deny --locked check --disable-fetch advisories
echo 'deny: licences, bans, sources and advisories checked' >&2
