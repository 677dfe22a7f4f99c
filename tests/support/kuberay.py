"""What KubeRay's schema of a RayJob says of the fields that our manifest uses.

The schema itself is over a megabyte, so tests read the file beside this one, which holds the facts that matter. To make
it anew, for another version of KubeRay or after a change of the manifest:

    curl -O https://raw.githubusercontent.com/ray-project/kuberay/v1.7.0/ray-operator/config/crd/bases/ray.io_rayjobs.yaml
    python -m tests.support.kuberay ray.io_rayjobs.yaml 1.7.0
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MANIFEST = Path(__file__).parents[2] / "examples" / "rayjob.yaml"
FACTS = Path(__file__).with_suffix(".yaml")
_KINDS = {str: "string", bool: "boolean", int: "integer", dict: "object", list: "array"}


def rayjob() -> dict[str, Any]:
    """The RayJob of the manifest."""
    (job,) = (each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == "RayJob")
    return job


def fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of everything in a manifest; the entries of a list share one path."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, inner in value.items():
            step = str(name).replace(".", "_")  # nvidia.com/gpu is one name
            yield from fields(inner, f"{path}.{step}" if path else step)
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, f"{path}[]")


def problems(manifest: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """What is in the manifest and not in the schema, or of another type, and what is missing."""
    known, found = facts["fields"], []
    for path, value in fields(manifest):
        fact = known.get(path) or known.get(path.rpartition(".")[0] + ".*")
        kinds = fact.split(" ") if fact else []
        if not fact:
            found.append(f"{path} is unknown")
        elif _KINDS[type(value)] not in kinds[0].split("|"):
            found.append(f"{path} must be {kinds[0]}, got {value!r}")
        elif len(kinds) > 1 and value not in kinds[1].split("|"):
            found.append(f"{path} must be one of {kinds[1]}, got {value!r}")
    for path, names in facts["required"].items():
        for place, value in fields(manifest):
            if place == path:
                found += [f"{path}.{name} is missing" for name in names if name not in value]
    return found


def derive(schema: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    """The facts on the manifest's fields, from the schema of the resource."""
    known: dict[str, str] = {}
    required: dict[str, list[str]] = {}

    def walk(value: Any, schema: dict[str, Any], path: str) -> None:
        kind = "integer|string" if schema.get("x-kubernetes-int-or-string") else schema["type"]
        known[path] = " ".join([kind, *(["|".join(schema["enum"])] if "enum" in schema else [])])
        if schema.get("required"):
            required[path] = schema["required"]
        if isinstance(value, dict):
            for name, inner in value.items():
                place = f"{path}.{name}" if path else name
                if name in schema.get("properties", {}):
                    walk(inner, schema["properties"][name], place)
                elif isinstance(schema.get("additionalProperties"), dict):
                    walk(inner, schema["additionalProperties"], f"{path}.*")
                elif place.startswith("metadata."):
                    known[place] = "string"  # of every resource, and not told by its schema
                else:
                    raise SystemExit(f"{place} is not in the schema")
        elif isinstance(value, list):
            for inner in value:
                walk(inner, schema["items"], f"{path}[]")

    walk(manifest, schema, "")
    del known[""]
    return {"fields": known, "required": required}


def main(crd: str, version: str) -> None:
    """Write the facts; a field that the schema does not know ends the program."""
    resource = yaml.load(Path(crd).read_text(), yaml.CSafeLoader)
    (served,) = (each for each in resource["spec"]["versions"] if each["name"] == "v1")
    schema = served["schema"]["openAPIV3Schema"]
    job = rayjob()
    facts = {"kuberay": version, "resource": f"{resource['metadata']['name']}/v1", **derive(schema, job)}
    FACTS.write_text(yaml.safe_dump(facts, width=118, default_flow_style=None))
    print(f"{MANIFEST.name} of KubeRay {version}: {len(facts['fields'])} facts in {FACTS.name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
