#!/usr/bin/env bash
# Builds the optimised program and packs it with what its operators need, into target/package/:
#   floodgate-<version>-<platform>.tar.gz   program, licences, configuration, deploy/, manuals
#   floodgate-<version>-<platform>.cdx.json bill of materials (CycloneDX)
#   SHA256SUMS                              of both: sha256sum -c SHA256SUMS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for tool in python3 tar gzip sha256sum strip; do
  command -v "$tool" >/dev/null || { echo "dist: $tool is missing" >&2; exit 1; }
done

cargo build --locked --profile dist -p floodgate --bin floodgate
target=${CARGO_TARGET_DIR:-target}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
platform=$(rustc -vV | sed -n 's/^host: //p')
name=floodgate-$version-$platform
package=$target/package
rm -rf "$package"
mkdir -p "$package/$name"

# Line numbers of backtraces stay; symbols that only linkers need go.
strip --strip-unneeded -o "$package/$name/floodgate" "$target/dist/floodgate"
cp -r README.md CHANGELOG.md SECURITY.md LICENSE-* config deploy docs "$package/$name/"
scripts/sbom.py >"$package/$name.cdx.json"

# The same input gives the same archive.
epoch=$(git log -1 --format=%ct 2>/dev/null || echo 0)
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -C "$package" -cf - "$name" |
  gzip -n9 >"$package/$name.tar.gz"
(cd "$package" && sha256sum "$name.tar.gz" "$name.cdx.json" >SHA256SUMS)
rm -r "${package:?}/$name"
echo "dist: $package/$name.tar.gz"
