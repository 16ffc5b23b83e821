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
    """One target."""

    name: str
    seeds: tuple[bytes, ...]  # inputs that are right
    parse: Callable[[bytes], None]  # reads an input, as the program would
    refusals: tuple[type[FenchelError], ...]  # what it may raise
    weight: int  # its share of all inputs
    memory: int = 64 << 20  # bytes by which one input may raise what the process takes
    change: Change = field(default=damaged)


def void(value: object) -> None:
    """Let a value go: what counts is that it could be read."""
