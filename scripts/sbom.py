#!/usr/bin/env python3
"""Prints the software bill of materials of the program `floodgate`: CycloneDX 1.5, in JSON.

Every crate that is linked in on this platform, with version, licence and the checksum of
Cargo.lock.
"""

import json
import pathlib
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = "floodgate"


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(metadata):
    """The ids of the packages that the program links in: without what only builds or tests it."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo = [package["id"] for package in metadata["packages"] if package["name"] == PROGRAM]
    found = {}
    while todo:
        package = todo.pop()
        if package in found:
            continue
        kinds = lambda dep: [kind["kind"] for kind in dep["dep_kinds"]]
        found[package] = [dep["pkg"] for dep in nodes[package]["deps"] if None in kinds(dep)]
        todo.extend(found[package])
    return found


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, checksums):
    checksum = checksums.get((package["name"], package["version"]))
    described = {
        "type": "application" if package["name"] == PROGRAM else "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(package),
        "licenses": [{"expression": (package["license"] or "").replace("/", " OR ")}],
    }
    if checksum:
        described["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return described


def main():
    host = next(
        line.split()[1] for line in run("rustc", "-vV").splitlines() if line.startswith("host:")
    )
    query = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", host]
    metadata = json.loads(run(*query))
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    found = linked(metadata)
    components = {id: component(packages[id], checksums) for id in found}
    program = next(id for id in found if packages[id]["name"] == PROGRAM)
    described = json.dumps(sorted(purl(packages[id]) for id in found))
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        # The same for the same crates.
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, described).urn,
        "version": 1,
        "metadata": {"component": components.pop(program)},
        "components": sorted(components.values(), key=lambda one: one["bom-ref"]),
        "dependencies": [
            {"ref": purl(packages[id]), "dependsOn": sorted({purl(packages[dep]) for dep in deps})}
            for id, deps in sorted(found.items())
        ],
    }
    json.dump(bom, sys.stdout, indent=1)
    print()


main()
