"""The tables of ``docs/settings.md``, from the settings themselves; ``make tables`` writes them anew."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fenchel.common.settings.run import json_schema

PAGE = Path(__file__).with_name("settings.md")
_SHARED = 3  # rows in common that make a table of their own
_WORDS = 35  # most words of a cell
_BEGIN, _END = "<!-- tables: begin -->", "<!-- tables: end -->"


def _described(node: Mapping[str, Any]) -> str:
    """Return the type of a setting, as a reader would say it."""
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


@dataclass(frozen=True)
class _Form:
    """One form of a section: its rows, and the sections in it."""

    label: str  # the value of ``kind`` or ``name`` that chooses it; empty: it is the only form
    about: str
    rows: Mapping[str, str]  # by key, as lines of a table
    inner: Mapping[str, list[_Form]]  # forms of the sections in it, by key


def _form(label: str, node: Mapping[str, Any], prefix: str, defs: Mapping[str, Any]) -> _Form:
    """Return a section as its schema describes it."""
    properties, required = node["properties"], node.get("required", [])
    chosen = {key for key, value in properties.items() if prefix and key in ("kind", "name") and "const" in value}
    texts = [properties[key].get("description") for key in chosen] + [node.get("description")]
    about = next((text for text in texts if text), "").partition("\n")[0].rstrip(".") if prefix else ""
    rows, inner = {}, {}
    for key in sorted(properties.keys() - chosen, key=lambda key: (key != "kind", list(properties).index(key))):
        value = properties[key]
        parts = _variants(value, defs)
        meaning = value.get("description") or (parts[0][1].get("description", "") if len(parts) == 1 else "")
        cells = [
            f"`{prefix}{key}`",
            "section" if parts else _described(value),
            _default(value, key in required),
            " ".join(meaning.split()).replace("|", "\\|"),
        ]
        rows[key] = f"| {' | '.join(cells)} |"
        if parts:
            inner[key] = [_form(label, part, f"{prefix}{key}.", defs) for label, part in parts]
    return _Form(label, f"{about[:1].upper()}{about[1:]}.\n" if about else "", rows, inner)


def _families(forms: list[_Form]) -> list[list[_Form]]:
    """Return the forms of a section in groups, of which each member has ``_SHARED`` rows in common with another."""
    families: list[list[_Form]] = []
    for form in forms:
        rows = {*form.rows.values()}
        for family in families:
            if any(len(rows.intersection(each.rows.values())) >= _SHARED for each in family):
                family.append(form)
                break
        else:
            families.append([form])
    return families


def _shared(family: list[_Form]) -> set[str]:
    """Return of each key the row that most forms have, if more than one has it."""
    found = set()
    for key in {key for form in family for key in form.rows}:
        row, times = Counter(form.rows[key] for form in family if key in form.rows).most_common(1)[0]
        found |= {row} if times > 1 else set()
    return found


def _sections(name: str, forms: list[_Form], shown: dict[str, list[_Form]]) -> Iterator[str]:
    """Yield the tables of all forms of a section; rows that several forms have are shown once, above these forms.

    shown: sections that there are tables of already, by dotted key.
    """
    if shown.get(name) == forms:
        return
    shown[name] = forms
    for family in _families(forms):
        shared: set[str] = set()
        if len(family) > 1:
            shared = _shared(family)
            values = (form.label.strip("`").partition(": ")[2].split(" or ") for form in family)
            first, *others, last = (f"`{value}`" for several in values for value in several)
            title = f"`{name}`: shared by {first} and others"
            yield f"### {title}\n\nKeys of {', '.join([first, *others])} and {last}.\n"
            yield from _table(dict.fromkeys(row for form in family for row in form.rows.values() if row in shared))
        for form in family:
            yield f"### {f'`{name}`' if name else 'The run'}{f' with {form.label}' if form.label else ''}\n"
            if form.about:
                yield form.about
            yield from _table(row for row in form.rows.values() if row not in shared)
            if also := [f"`{key}`" for key, row in form.rows.items() if row in shared]:
                yield f"Also {', '.join(also)} ([shared](#{re.sub('[^a-z0-9_ -]', '', title).replace(' ', '-')})).\n"
    for form in forms:
        for key, parts in form.inner.items():
            yield from _sections(f"{name}.{key}".lstrip("."), parts, shown)


def _table(rows: Iterable[str]) -> Iterator[str]:
    """Yield a table of these rows, if there are any, and below it what is too long for a cell."""
    if rows := list(rows):
        below = []
        yield "| key | type | default | meaning |\n|---|---|---|---|"
        for row in rows:
            *cells, meaning = row.removesuffix(" |").split(" | ")
            meaning, values = _divided(meaning)
            yield f"{' | '.join([*cells, meaning])} |"
            if values:
                below += ["", f"{cells[0].removeprefix('| ')}:", "", *(f"* {value}" for value in values)]
        yield from below
        yield ""


def _divided(meaning: str) -> tuple[str, list[str]]:
    """Divide a meaning that is too long for a cell before its first ``value: what it means``, or after a sentence."""
    if len(meaning.split()) <= _WORDS:
        return meaning, []
    first, *others = re.split(r"(?<=[.;]) (?=[\w-]+(?:, [\w-]+)*: )", meaning)
    sentences = re.split(r"(?<=[.;]) ", first)
    kept = next((n for n in range(len(sentences), 0, -1) if len(" ".join(sentences[:n]).split()) <= _WORDS), 1)
    rest = [*([" ".join(sentences[kept:])] if sentences[kept:] else []), *others]
    return " ".join(sentences[:kept]).rstrip(".;"), [each.rstrip(".;") for each in rest]


def _variants(node: Mapping[str, Any], defs: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the sections that a key may hold: one, or one for each value of ``kind`` or ``name``."""
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
    run = _form("", schema, "", schema["$defs"])
    return "\n".join(_sections("", [run], {})).rstrip() + "\n"


def with_tables(page: str) -> str:
    """Return a page with its tables written anew."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{settings_tables()}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
