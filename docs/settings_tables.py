"""The tables of ``docs/settings.md``, from the settings themselves; ``make tables`` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fenchel.common.settings.run import json_schema

PAGE = Path(__file__).with_name("settings.md")
_BEGIN, _END = "<!-- tables: begin -->", "<!-- tables: end -->"


def _described(node: Mapping[str, Any]) -> str:
    """The type of a setting, as a reader would say it."""
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    options = node.get("anyOf", [])
    if options:
        return " or ".join(dict.fromkeys(_described(option) for option in options))
    if "$ref" in node or "oneOf" in node:
        return "section"
    kind = node.get("type")
    if kind == "array":
        items = node.get("items") or {"anyOf": node["prefixItems"]}
        return f"list of {_described(items)}"
    if kind == "object":
        return "mapping"
    if kind == "string" and node.get("format") == "path":
        return "path"
    bounds = [
        f"{sign} {node[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in node and node[key] < 1 << 62
    ]
    names = {"string": "text", "boolean": "`true` or `false`", "null": "`null`", None: "any"}
    return " ".join([names.get(kind, str(kind)), *bounds])


def _default(node: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    if "default" not in node or isinstance(node["default"], dict):
        return ""
    value = node["default"]
    return f"`{value}`" if isinstance(value, str) else f"`{yaml.safe_dump(value, default_flow_style=True).split()[0]}`"


def _section(
    title: str, node: Mapping[str, Any], prefix: str, defs: Mapping[str, Any], shown: dict[str, Mapping[str, Any]]
) -> Iterator[str]:
    """The tables of a section and of the sections in it; what several sections have in common is shown once."""
    if shown.get(title) == node:
        return
    shown[title] = node
    yield f"### {title}\n"
    properties, required = node["properties"], node.get("required", [])
    chosen = {key for key, value in properties.items() if prefix and key in ("kind", "name") and "const" in value}
    about = [properties[key].get("description") for key in chosen] + [node.get("description")]
    if prefix and any(about):
        text = next(text for text in about if text).splitlines()[0].rstrip(".")
        yield f"{text[0].upper()}{text[1:]}.\n"
    if properties.keys() > chosen:
        yield "| key | type | default | meaning |\n|---|---|---|---|"
    inner: list[tuple[str, str, Mapping[str, Any]]] = []
    for key in sorted(properties.keys() - chosen, key=lambda key: (key != "kind", list(properties).index(key))):
        value, name = properties[key], prefix + key
        parts = _variants(value, defs)
        meaning = value.get("description") or (parts[0][1].get("description", "") if len(parts) == 1 else "")
        cells = [
            f"`{name}`",
            "section" if parts else _described(value),
            _default(value, key in required),
            " ".join(meaning.split()).replace("|", "\\|"),
        ]
        yield f"| {' | '.join(cells)} |"
        inner += [(name, label, part) for label, part in parts]
    if properties.keys() > chosen:
        yield ""
    for name, label, part in inner:
        yield from _section(f"`{name}`" + (f" with {label}" if label else ""), part, f"{name}.", defs, shown)


def _variants(node: Mapping[str, Any], defs: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The sections that a key may hold: one, or one for each value of ``kind`` or ``name``."""
    options = node.get("oneOf") or node.get("anyOf") or ([node] if "$ref" in node or "properties" in node else [])
    found = []
    for option in options:
        part = defs[option["$ref"].rpartition("/")[2]] if "$ref" in option else option
        if "properties" not in part or part.get("title") == "an algorithm of one's own":
            continue
        tags = [
            f"`{key}: {value}`"
            for key in ("kind", "name")
            for value in [part["properties"].get(key, {})]
            for value in [value.get("const") or " | ".join(value.get("enum", []))]
            if value
        ]
        found.append((tags[0].replace("|", "or") if tags else "", part))
    return found


def settings_tables() -> str:
    """Return the tables of all sections, in Markdown."""
    schema = json_schema()
    return "\n".join(_section("The run", schema, "", schema["$defs"], {})).rstrip() + "\n"


def with_tables(page: str) -> str:
    """Return a page with its tables written anew."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{settings_tables()}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
