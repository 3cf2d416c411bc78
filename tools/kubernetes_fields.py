"""Write the list of fields of Kubernetes' own kinds: `python tools/kubernetes_fields.py _definitions.json`.

The input is Kubernetes' JSON schema with all definitions in one file, as in the package kubernetes-validate of PyPI.
The output has names, types and requirements of fields, without texts; `provision/documents/kubernetes.py` describes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).resolve().parent.parent / "provision/documents/files/kubernetes_core.json"
KINDS = {
    "v1/Secret": "io.k8s.api.core.v1.Secret",
    "v1/Service": "io.k8s.api.core.v1.Service",
    "batch/v1/Job": "io.k8s.api.batch.v1.Job",
}
PARTS = ("io.k8s.api.core.v1.PodTemplateSpec",)
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
ANYTHING = {
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "string",
}


def main(source: str) -> None:
    """Write `OUTPUT`."""
    definitions = json.loads(Path(source).read_text(encoding="utf-8"))["$defs"]
    types: dict[str, dict[str, str]] = {}
    for name in (*KINDS.values(), *PARTS):
        _add(name, definitions, types)
    lines = [f"{json.dumps(name)}: {json.dumps(types[name])}" for name in sorted(types)]
    kinds = {kind: _short(name) for kind, name in KINDS.items()}
    text = f'{{"kinds": {json.dumps(kinds)},\n"types": {{\n' + ",\n".join(lines) + "\n}}\n"
    OUTPUT.write_text(text, encoding="utf-8")


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _add(name: str, definitions: dict[str, Any], types: dict[str, dict[str, str]]) -> None:
    short = _short(name)
    if short in types:
        return
    fields: dict[str, str] = {}
    types[short] = fields
    required = definitions[name].get("required", ())
    for field, schema in definitions[name].get("properties", {}).items():
        if (field, short) in {("status", "Job"), ("status", "Service")}:
            continue
        fields[field + "!" * (field in required)] = _type(schema, definitions, types)


def _type(schema: dict[str, Any], definitions: dict[str, Any], types: dict[str, dict[str, str]]) -> str:  # noqa: PLR0911 - one for each form of a type
    name = schema.get("$ref", "").rpartition("/")[2]
    if name in {QUANTITY, INT_OR_STRING}:
        return "quantity" if name == QUANTITY else "int-or-string"
    if name in ANYTHING:
        return ANYTHING[name]
    if name and "properties" in definitions[name]:
        _add(name, definitions, types)
        return _short(name)
    if name:
        return _type(definitions[name], definitions, types)
    kind = schema.get("type", "any")
    kind = next((one for one in kind if one != "null"), "any") if isinstance(kind, list) else kind
    if kind == "array":
        return f"[{_type(schema['items'], definitions, types)}]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{{{_type(schema['additionalProperties'], definitions, types)}}}"
    return "any" if kind == "object" else str(kind)


if __name__ == "__main__":
    main(sys.argv[1])
