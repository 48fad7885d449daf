#!/usr/bin/env bash
# Prints the size of the repository next to its limits. Fails if the imports or names break a rule.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rust() { git ls-files -z -- "$@" | grep -z '\.rs$'; }
lines() { rust "$@" | xargs -0 cat | wc -l; }
lengths() { rust "$@" | xargs -0 -n 1 wc -l | awk '{ print $1 }' | sort -n; }

row() { printf '%-46s %8s   %s\n' "$@"; }
row 'figure' 'is' 'limit'
row 'lines in src/' "$(lines src)" '-'

# The limits: docs/adr/0040-sizes-have-a-limit-for-each-part.md.
part() { # description, limit, folders of src/
  row "  $1" "$(lines "${@:3}")" "$2"
}
way=(messages stock redis outbox broker watermark lease)
part 'click to order: stores' 11600 "${way[@]/#/src/}"
part 'actors' 9350 src/actors
part 'ledger' 10140 src/db
part 'rules and services' 9620 src/domain src/services
part 'payment providers' 1550 src/payment
part 'front door' 12010 src/http src/tickets src/limits
part 'command line and settings' 9710 src/cli src/config
part 'process, network, metrics' 3520 src/runtime src/observe src/net src/tier ':(glob)src/*.rs'
row 'lines in crates/ and bench/' "$(lines crates bench)" 6970
row 'lines in tests/' "$(lines tests)" '-'
# A word has a letter or a digit: the bars of tables are none.
words() { git ls-files -z docs | grep -z '\.md$' | xargs -0 cat | tr -s '[:space:]' '\n'; }
row 'words in docs/' "$(words | grep -c '[[:alnum:]]')" 28000
# What one purchase passes, by docs/one-purchase.txt.
passed() { grep -c "^$1 " docs/one-purchase.txt; }
row 'files that work on one purchase, tier pipeline' "$(passed file)" 60
row '  and files that these call' "$(passed serves)" '-'
row 'types that carry one purchase' "$(passed type)" 30
row 'median lines of a file in src/' \
  "$(lengths src | awk '{ n[NR] = $1 } END { print n[int((NR + 1) / 2)] }')" 150
row 'files in src/ below 40 lines' \
  "$(lengths src | awk '$1 < 40 { few++ } END { printf "%.1f %%", 100 * few / NR }')" '5 %'

# The rules with the limit 0: imports that go up, circles of folders, coined names.
cargo test --quiet --locked --test it -- tidy::floors tidy::vocabulary >/dev/null
row 'folder cycles, upward imports, banned words' 0 0
