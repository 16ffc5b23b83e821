"""Damage for fuzzing: from an input that is right to one that is nearly so."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

SIZES = (0, 1, 7, 8, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53)
WIDE = (*SIZES, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
"""Numbers at which sizes wrap, overflow or ask for more memory than there is."""

NUMBERS = (
    *(str(size).encode() for size in WIDE),
    *(b"-1", b"-0", b"0x10", b"1e308", b"1e999", b"-1e999", b"nan", b"inf", b"1_0", b"9" * 5000, b"0.1e-400"),
)
BOMB = b"{a0: &a0 [%s], %srounds: *a8}" % (
    b",".join([b"x"] * 10),
    b"".join(b"a%d: &a%d [%s], " % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 9)),
)
"""A short text in YAML that stands for 10 ** 9 values: lists of ten that refer to lists of ten, and so on."""

WORDS = (
    *(b"", b" ", b"\n", b"\r\n", b"\t", b",", b":", b"#", b'"', b"'", b"\\", b"/", b"..", b"\0", b"\xff\xfe"),
    *(b"null", b"true", b"[]", b"{}", b"[" * 200, b"{" * 200, b"!!python/name:os.system", b"&a [*a]", b"*a"),
    *("é".encode(), "\u2028".encode(), "\U0001f4a3".encode(), b"\xed\xa0\x80", b"\x1b[2J", b"[/bold]"),
)
_DIGITS = re.compile(rb"-?\d[\d._]*(?:[eE][-+]?\d+)?")


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it, seven bits a byte, low bits first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def damaged(chance: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change an input in one to six places, also by pieces of others."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        chance.choice(_WAYS)(chance, changed, others)
    return bytes(changed)


def _place(chance: random.Random, content: bytearray) -> int:
    return chance.randrange(len(content)) if content else 0


def _flip(chance: random.Random, content: bytearray, others: Sequence[bytes]) -> None:
    if content:
        content[_place(chance, content)] ^= 1 << chance.randrange(8)


def _set(chance: random.Random, content: bytearray, others: Sequence[bytes]) -> None:
    if content:
        content[_place(chance, content)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))


def _cut(chance: random.Random, content: bytearray, others: Sequence[bytes]) -> None:
    place = _place(chance, content)
    del content[place : place + chance.choice((1, 1, 2, 4, 8, 64, len(content)))]


def _insert(chance: random.Random, content: bytearray, others: Sequence[bytes]) -> None:
    place = _place(chance, content)
    content[place:place] = chance.randbytes(chance.choice((1, 2, 4, 8, 33)))


def _repeat(chance: random.Random, content: bytearray, others: Sequence[bytes]) -> None:
    start = _place(chance, content)
    piece = content[start : start + chance.choice((1, 2, 8, 32, 128))]
    content[start:start] = piece * chance.choice((1, 1, 2, 7))


def _splice(chance: random.Random, content: bytearray, others: Sequence[bytes]) -> None:
    other = chance.choice(others)
    start, here = chance.randrange(len(other) + 1), _place(chance, content)
    piece = other[start : start + chance.choice((4, 16, 64, len(other)))]
    if chance.random() < 0.5:
        content[here : here + len(piece)] = piece
    else:
        content[here:here] = piece


def _widen(chance: random.Random, content: bytearray, others: Sequence[bytes]) -> None:
    """Put an extreme number in the place of some bytes: as a varint, or in four or eight bytes of either order."""
    number, here = chance.choice(WIDE), _place(chance, content)
    form = chance.randrange(4)
    if form == 0:
        content[here : here + chance.choice((0, 1, 2, 5))] = varint(number)
    elif form == 1:
        content[here : here + 4] = (number & 0xFFFFFFFF).to_bytes(4, chance.choice(("little", "big")))
    else:
        content[here : here + 8] = number.to_bytes(8, chance.choice(("little", "big")))


def _renumber(chance: random.Random, content: bytearray, others: Sequence[bytes]) -> None:
    found = list(_DIGITS.finditer(content))
    if found:
        match = chance.choice(found)
        content[match.start() : match.end()] = chance.choice(NUMBERS)


def _word(chance: random.Random, content: bytearray, others: Sequence[bytes]) -> None:
    here = _place(chance, content)
    content[here : here + chance.choice((0, 0, 1, 4))] = chance.choice(WORDS)


_WAYS: tuple[Callable[[random.Random, bytearray, Sequence[bytes]], None], ...] = (
    *(_flip, _flip, _set, _set, _cut, _insert, _repeat, _splice, _widen, _widen, _renumber, _word),
)


def disturbed(chance: random.Random, message: Message) -> None:
    """Change one field somewhere in a protobuf message: to an extreme, to nothing, or by leaving it out."""
    present = message.ListFields()
    inner = [value for field, value in present if _is_message(field) and not field.is_repeated]
    inner += [item for field, items in present if _is_message(field) and field.is_repeated for item in items]
    if inner and chance.random() < 0.75:
        disturbed(chance, chance.choice(inner))
        return
    fields: list[Any] = list(message.DESCRIPTOR.fields)
    field = chance.choice(fields)
    if chance.random() < 0.1:
        message.ClearField(field.name)
    elif field.is_repeated:
        _disturb_list(chance, message, field)
    elif _is_message(field):
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _extreme(chance, field))


def _is_message(field: FieldDescriptor) -> bool:
    return field.message_type is not None


def _disturb_list(chance: random.Random, message: Message, field: FieldDescriptor) -> None:
    items = getattr(message, field.name)
    if items and chance.random() < 0.4:
        del items[chance.randrange(len(items))]
    elif _is_message(field):
        (items.add().CopyFrom(chance.choice(items)) if items else items.add())
    else:
        items.append(_extreme(chance, field))


def _extreme(chance: random.Random, field: FieldDescriptor) -> Any:
    wide = field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_UINT32 | FieldDescriptor.CPPTYPE_UINT64:
            return min(_number(chance), 2 ** (64 if wide else 32) - 1)
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_INT64:
            return chance.choice((1, -1)) * min(_number(chance), 2 ** (63 if wide else 31) - 1)
        case FieldDescriptor.CPPTYPE_ENUM if field.enum_type is not None:
            return chance.choice((*(value.number for value in field.enum_type.values), 99))
        case FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.choice((b"", chance.randbytes(16), chance.randbytes(chance.randrange(40))))
        case FieldDescriptor.CPPTYPE_STRING:
            word = chance.choice((*WORDS, b"x" * 300)).decode(errors="replace")
            return word or chance.choice(("", "a", "b"))
        case _:
            return chance.choice((0.0, -1.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")))


def _number(chance: random.Random) -> int:
    return chance.choice(WIDE) if chance.random() < 0.5 else chance.randrange(64)


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63, 10**30, 0.5, -0.5, 1e308, 1e-308, 5e-324),
    *("", "x", "auto", "none", "own", "os:system", "../../x", "/etc/passwd", "x" * 300, "1e999", "\0", "\ud800"),
    *([], {}, [[]], [1, 2], ["a"], {"name": "fedavg"}, {"kind": "own", "name": "os:system"}, {"kind": "none"}),
)


def rearranged(chance: random.Random, tree: Any, others: Sequence[Any]) -> Any:
    """Return a JSON value with one to three changes: values replaced, keys renamed, dropped or exchanged."""
    changed = json.loads(json.dumps(tree))
    for _ in range(chance.choice((1, 1, 2, 3))):
        _rearrange(chance, changed, chance.choice(others))
    return changed


def _rearrange(chance: random.Random, node: Any, other: Any) -> None:
    keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    if not keys:
        return
    key = chance.choice(keys)
    below = node[key]
    if isinstance(below, dict | list) and below and chance.random() < 0.7:
        _rearrange(chance, below, other[key] if isinstance(other, dict) and key in other else other)
        return
    match chance.randrange(6):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[chance.choice(("", "name", "kind", "size", "x", str(key) + "s"))] = node.pop(key)
        case 2 if isinstance(other, dict) and key in other:
            node[key] = copy.deepcopy(other[key])
        case _:
            node[key] = copy.deepcopy(chance.choice(_VALUES))
