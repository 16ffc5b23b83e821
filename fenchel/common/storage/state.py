"""Conversion of an algorithm's state to named values and back.

Each half of an algorithm keeps the state that must survive a crash in one dataclass. Its fields may be arrays,
:class:`~fenchel.common.wire.values.SparseVector`, encrypted vectors, numbers, text, ``None``, and lists or string-keyed
dicts of these. A :class:`~fenchel.common.crypto.vector.CipherVector` is restored as
:class:`~fenchel.common.wire.values.Ciphertexts`, from which the owner of the key can make a vector again.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import CheckpointError
from fenchel.common.wire.codecs import codec_of
from fenchel.common.wire.values import Value, Values

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S")
_STRUCTURE = "structure"


def freeze(state: DataclassInstance) -> dict[str, Value]:
    """Return the state as payload values: its arrays by path, and a JSON text with its structure.

    Arrays are referenced, not copied. A field of an unsupported type raises ``TypeError``.
    """
    values: dict[str, Value] = {}
    structure = {
        field.name: _node(getattr(state, field.name), f"state/{field.name}", values) for field in fields(state)
    }
    values[_STRUCTURE] = json.dumps(structure)
    return values


def _node(item: Any, path: str, values: dict[str, Value]) -> Any:
    """Put the arrays of an item into ``values``, and return its structure.

    This is no closure of :func:`freeze`, because a recursive closure would keep all arrays until garbage collection.
    """
    if isinstance(item, CipherVector):
        item = item.to_wire()
    if (codec := codec_of(type(item))) is not None and not codec.is_scalar:
        values[path] = item
        return {"array": path}
    if isinstance(item, np.generic):
        return {"value": item.item()}
    if item is None or isinstance(item, bool | int | float | str):
        return {"value": item}
    if isinstance(item, list):
        return {"list": [_node(entry, f"{path}/{place}", values) for place, entry in enumerate(item)]}
    if isinstance(item, dict) and all(isinstance(key, str) for key in item):
        return {"dict": {key: _node(entry, f"{path}/{_escaped(key)}", values) for key, entry in item.items()}}
    raise TypeError(
        f"state field {path!r} is a {type(item).__name__}; arrays, numbers, text, lists and dicts can be kept"
    )


def _escaped(key: str) -> str:
    """Escape slashes, so that paths of nested entries are unambiguous (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def thaw(kind: type[S], values: Values) -> S:
    """Restore a state from the values of :func:`freeze`. Arrays are new, writable copies.

    Raise ``CheckpointError`` if the values do not fit the class ``kind``.
    """
    try:
        structure = json.loads(str(values[_STRUCTURE]))
        return kind(**{name: _item(node, values) for name, node in structure.items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"a stored state does not fit {kind.__qualname__} ({error}); continue with the version of Fenchel, and "
            "of your own algorithm, that wrote it"
        ) from error


def _item(node: Any, values: Values) -> Any:
    """Return the item with a structure that :func:`_node` returned."""
    if "array" in node:
        value = values[node["array"]]
        codec = codec_of(type(value))
        if codec is None or codec.is_scalar:
            raise TypeError(f"{node['array']!r} is no array")
        return codec.detached(value)
    if "list" in node:
        return [_item(entry, values) for entry in node["list"]]
    if "dict" in node:
        return {key: _item(entry, values) for key, entry in node["dict"].items()}
    return node["value"]
