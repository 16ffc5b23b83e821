"""What a target for fuzzing is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fenchel.common.errors import FenchelError
from tests.hostile.mutation import damaged

Change = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Parser:
    """One target.

    Attributes
    ----------
    name
        For people.
    seeds
        Inputs that are right.
    parse
        Reads an input, as the program would.
    refusals
        What it may raise.
    weight
        Its share of all inputs.
    memory
        Bytes by which one input may raise what the process takes.
    change
        Damages an input.
    """

    name: str
    seeds: tuple[bytes, ...]
    parse: Callable[[bytes], None]
    refusals: tuple[type[FenchelError], ...]
    weight: int
    memory: int = 64 << 20
    change: Change = field(default=damaged)


def void(value: object) -> None:
    """Let a value go: what counts is that it could be read."""
