"""The base of every section of the settings, and the wording of what is wrong in one."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from fenchel.common.errors import SettingsError

# Pattern of the name of a run or a search, which is part of the folder's name and of the JSON Schema.
RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


_NO_NUMBER = "boolean_as_number"  # type of the error of a boolean where a number is expected

MOST_VALUES = 100_000
"""Largest number of values in a YAML text with aliases. Without aliases its length is a sufficient bound."""

DEEPEST = 100
"""Largest depth of lists and sections in brackets in a YAML text."""


class Section(BaseModel):
    """A part of the settings: immutable, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_boolean_as_a_number(cls, values: Any) -> Any:
        # YAML reads yes, on and true as a boolean, which pydantic would take for the number 1.
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if isinstance(value, bool) and key in cls.model_fields:
                kinds = _alternatives(cls.model_fields[key].annotation)
                if kinds & {int, float} and bool not in kinds:
                    number = "a number" if float in kinds else "a whole number"
                    expected = f"expected {number} (given {_YAML_WORDS[value]})"
                    raise PydanticCustomError(_NO_NUMBER, "{expected}", {"key": key, "expected": expected})
        return values


def yaml_value(text: str) -> Any:
    """Return what a YAML text says."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it makes no more of a text than safe_load does
    except (ValueError, TypeError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from None


class _Loader(yaml.SafeLoader):
    """A loader that bounds what a text stands for, and how deep.

    With aliases of aliases, a few lines can stand for more than fits in memory.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._within: dict[yaml.Node | None, int] = {}  # number of values that each node expands to

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        """Open a list or section in brackets; refuse one too deep, as each token costs time for each level above it."""
        if self.flow_level >= DEEPEST:
            raise yaml.YAMLError(
                f"line {self.line + 1}: lists or sections are nested more than {DEEPEST} levels deep; remove some "
                "levels"
            )
        super().fetch_flow_collection_start(TokenClass)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node; refuse an alias by which a text would hold too much, or itself."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._values
        node = super().compose_node(parent, index)
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1
            self._within[node] = self._values - before
            return node
        self._values += self._within.get(node, MOST_VALUES + 1)
        if self._values > MOST_VALUES:
            line = 0 if event.start_mark is None else event.start_mark.line + 1
            raise yaml.YAMLError(
                f"line {line}: with the alias *{event.anchor:.40} "
                + (
                    f"the file holds more than {MOST_VALUES:,} values; use fewer aliases"
                    if node in self._within
                    else "a section or list contains itself; write its values out instead"
                )
            )
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return the next section; refuse a key that it has twice, of which one value would be ignored."""
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in seen:
                raise yaml.YAMLError(
                    f"line {key.start_mark.line + 1}: a section has the key {key.value!r:.40} twice; remove one of them"
                )
            seen.add((key.tag, key.value))
        return node


def _place(location: tuple[int | str, ...], values: Any, *, missing: bool) -> str:
    """Return the dotted key of an error, without the names of alternatives that pydantic inserts."""
    key = []
    for number, part in enumerate(location):
        inside = isinstance(values, Mapping) and part in values
        if inside or (isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)):
            key.append(str(part))
            values = values[part]
        elif missing and number == len(location) - 1:
            key.append(str(part))
    return ".".join(key)


_FORMS = {  # descriptions of patterns for users
    RUN_NAME: "1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit"
}
_YAML_WORDS = {None: "null", True: "true", False: "false"}


_BRIEF = reprlib.Repr()
"""Takes the ``repr`` of a value of any size, and not much longer than is shown of it."""
_BRIEF.maxlevel = 4
_BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxdict = 20
# reprlib would omit the middle of a long text, whereas _given cuts the end. Hence the generous limits.
_BRIEF.maxstring = _BRIEF.maxlong = _BRIEF.maxother = 400


def _given(value: Any) -> str:
    text = _YAML_WORDS[value] if value is None or isinstance(value, bool) else _BRIEF.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_EXPECTED = {  # valid values by the type of an error, as pydantic's own descriptions are for programmers
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    "string_pattern_mismatch": "text of the form {pattern}",
    "invalid_key": "text as a key",
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a section with keys"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of {max_length} or fewer",
}


def _expected(problem: ErrorDetails) -> str:
    """Return a description of valid values for users."""
    limits = problem.get("ctx", {})
    if limits.get("pattern") in _FORMS:
        return _FORMS[limits["pattern"]]
    if problem["type"] not in _EXPECTED:
        return problem["msg"].removeprefix("Input should be ")
    shown = {name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in limits.items()}
    return _EXPECTED[problem["type"]].format(**shown)


def _alternatives(annotation: Any) -> set[Any]:
    """Return the types of which a field may hold a value, without those of the elements of lists."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return {kind for part in get_args(annotation) for kind in _alternatives(part)}
    return {annotation} if isinstance(annotation, type) else set()


def _sections(annotation: Any) -> set[type[Section]]:
    """Return the sections that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return {annotation}
    return {section for part in get_args(annotation) for section in _sections(part)}


def _descendants(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for each in section.__subclasses__():
        yield from _descendants(each)


def _deeper(whole: str, path: Sequence[int | str], wrong: str) -> str:
    """Return the dotted key of a setting of this name one section below a place; empty if there is none.

    Parameters
    ----------
    whole
        Name of the class of all settings.
    """
    found = {each for each in _descendants(Section) if each.__name__ == whole}
    keys = []
    for part in path:
        fields = [field for each in found for name, field in each.model_fields.items() if name == part]
        if fields:  # parts without a field are tags of a union, not keys
            found = {section for field in fields for section in _sections(field.annotation)}
            keys.append(str(part))
    for each in sorted(found, key=lambda section: section.__name__):
        for name, field in each.model_fields.items():
            if any(wrong in section.model_fields for section in _sections(field.annotation)):
                return ".".join([*keys, name, wrong])
    return ""


def _meant(whole: str, place: tuple[int | str, ...], values: Mapping[str, Any]) -> str:
    """Return which key a misspelt one may stand for; empty if none is like it in a section with its neighbours.

    Parameters
    ----------
    whole
        Name of the class of all settings.
    """
    *path, wrong = place
    if deeper := _deeper(whole, path, str(wrong)):
        return f"did you mean {deeper}?"
    section: Any = values
    for part in path:
        if isinstance(section, Mapping):
            section = section.get(part, section)  # tags of a union are not keys
    known = set[str]()
    for each in _descendants(Section):
        kinds = {key: get_args(field.annotation) for key, field in each.model_fields.items() if key in ("name", "kind")}
        if isinstance(section, Mapping) and all(
            section.get(key) in kind for key, kind in kinds.items() if kind or key == "kind"
        ):
            known |= each.model_fields.keys()
    if wrong in known:
        return ""  # the key is spelt correctly, but stands in the wrong section
    return did_you_mean(str(wrong), known)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return the question whether a wrong name stands for the known one most like it; empty if none is like it."""
    alike = get_close_matches(wrong[:64], list(known), n=1, cutoff=0.7)
    return f"did you mean {alike[0]}?" if alike else ""


def settings_error(error: ValidationError, values: Mapping[str, Any], source: str) -> SettingsError:
    """Word a validation error for the person who wrote the settings.

    Parameters
    ----------
    source
        Where the settings came from: a file name, or ``"settings"``.

    Returns
    -------
    SettingsError
        One line for each key: the key, what was given, what is allowed.
    """
    lines: list[tuple[str, str]] = []  # pairs of a key and a description of the error
    # Expected kinds by key and given value; pydantic reports one error for each alternative of a union.
    alternatives: dict[tuple[str, str], list[str]] = {}
    for problem in error.errors():
        key, given = _place(problem["loc"], values, missing=problem["type"] == "missing"), problem["input"]
        details = problem.get("ctx", {})
        if problem["type"] == "extra_forbidden":
            meant = _meant(error.title, problem["loc"], values)
            remedy = "check its spelling and its place (docs/settings.md has all keys)"
            lines.append((key, f"unknown key (given {_given(given)}); {meant or remedy}"))
        elif problem["type"] == "missing":
            lines.append((key, "required, but not given"))
        elif problem["type"] == "value_error":
            lines.append((key, str(details["error"])))  # Fenchel's own validators already name the given value
        elif problem["type"] == _NO_NUMBER:
            lines.append((f"{key}.{details['key']}".removeprefix("."), details["expected"]))
        elif problem["type"] in ("union_tag_not_found", "union_tag_invalid"):
            chosen, wrong = details["discriminator"].strip("'"), "required, but not given"
            if "tag" in details:
                wrong = f"expected one of {details['expected_tags']} (given {_given(details['tag'])})"
            lines.append((f"{key}.{chosen}".removeprefix("."), wrong))
        else:
            alternatives.setdefault((key, _given(given)), []).append(_expected(problem))
    places = {key for key, _ in (*lines, *alternatives)}
    for (key, shown), kinds in alternatives.items():
        if any(place.startswith(f"{key}.") for place in places):
            continue  # errors inside the value matter more than errors of other alternatives of the union
        lines.append((key, f"expected {', or '.join(dict.fromkeys(kinds))} (given {shown})"))
    if len(lines) == 1:
        key, wrong = lines[0]
        return SettingsError(wrong, key=key, source=source)
    return SettingsError(
        "".join(f"\n  {key}: {wrong}" if key else f"\n  {wrong}" for key, wrong in lines),
        source=source,
        problems=tuple(lines),
    )
