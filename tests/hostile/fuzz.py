"""Throw damaged inputs at everything that parses bytes, and count what comes of them.

``make fuzz`` runs it to a million inputs. An input may be read, or be refused with an error of the kind that
its parser names; anything else is a finding: another exception, more than a second, more memory than its
parser declares. There is no coverage to steer by, but something nearly as good: inputs that were refused for
a reason never seen before are kept, and damaged further.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.hostile.parser import Parser
from tests.hostile.parsers import parsers

WORK = 20.0
"""How much of the processor's time one input may take: so many times as much as a fixed piece of work does, which is
some 25 ms of a processor of 2025."""

HANGS = 3.0
"""Seconds of the processor's time after which an input is taken to hang."""

LEAST = 50
"""Inputs that are thrown however long they take: a machine that stands still for a moment shows nothing."""

KEPT = 400
"""Inputs of a parser that are kept to be damaged further, beside its seeds."""

_SPACE = 2 << 30  # bytes of address space that parsing may ask for, beyond what the process has at the start
_NAMES = re.compile(r"'[^']*'|\"[^\"]*\"|\d+|0x[0-9a-f]+|b?'.*")


class TooSlowError(BaseException):
    """An input takes longer than it may; no handler of a parser may catch it."""


@dataclass(frozen=True)
class Finding:
    """An input that was neither read nor refused as it should be."""

    parser: str
    data: bytes
    what: str


@dataclass
class Count:
    """What came of a parser's inputs."""

    parser: str
    inputs: int = 0
    read: int = 0
    reasons: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.parser:16} {self.inputs:>9,} inputs {self.read:>9,} read {self.reasons:>6,} reasons "
            f"{self.seconds:>8.1f} s {len(self.findings):>4} findings"
        )


def fuzz(parser: Parser, inputs: int, seed: int, patience: float = float("inf")) -> Count:
    """Throw inputs at one parser: so many, but beyond :data:`LEAST` only for as many seconds as ``patience`` has."""
    chance = random.Random(f"{seed} {parser.name}")
    seeds = list(parser.seeds)
    kept: list[bytes] = []
    known: set[str] = set()
    count = Count(parser.name)
    started = time.perf_counter()
    peak = _peak()
    unit = _work()
    with _alarm():
        for data in _inputs(parser, chance, seeds, kept, inputs):
            if count.inputs >= LEAST and time.perf_counter() - started > patience:
                break
            count.inputs += 1
            before = time.thread_time()
            what, reason = _outcome(parser, data)
            took, now = time.thread_time() - before, _peak()
            if what is None and took > WORK * unit:  # other work on the machine adds to it, so it is tried again
                took, unit = min(_seconds(parser, data) for _ in range(2)), _work()
                what = f"took {took:.2f} s, and may take {WORK * unit:.2f}" if took > WORK * unit else None
            if what is None and now - peak > parser.memory:
                what = f"took {(now - peak) / 2**20:.0f} MiB, and may take {parser.memory / 2**20:.0f}"
            peak = max(peak, now)
            count.read += not reason
            if what is not None:
                count.findings.append(Finding(parser.name, data, what))
            if reason not in known:
                known.add(reason)
                if len(kept) < KEPT and len(data) < 1 << 16:
                    kept.append(data)
    count.reasons = len(known)
    count.seconds = time.perf_counter() - started
    return count


def _inputs(
    parser: Parser, chance: random.Random, seeds: Sequence[bytes], kept: list[bytes], number: int
) -> Iterator[bytes]:
    """Yield the seeds as they are, then what becomes of them and of those that are kept meanwhile."""
    yield from seeds[:number]
    for _ in range(number - len(seeds)):
        found = kept if kept and chance.random() < 0.5 else seeds
        yield parser.change(chance, chance.choice(found), seeds)


def _work() -> float:
    """Return the processor time of a fixed piece of work, from a tenth of it."""
    seconds = []
    for _ in range(3):
        before = time.thread_time()
        sum(n * n for n in range(50_000))
        seconds.append(time.thread_time() - before)
    return 10 * min(seconds)


def _seconds(parser: Parser, data: bytes) -> float:
    before = time.thread_time()
    _outcome(parser, data)
    return time.thread_time() - before


def _outcome(parser: Parser, data: bytes) -> tuple[str | None, str]:
    """Return what is wrong, if anything, and for what reason the input was refused: empty, it was not."""
    signal.setitimer(signal.ITIMER_PROF, HANGS)
    try:
        parser.parse(data)
    except parser.refusals as error:
        return None, f"{type(error).__name__} {_NAMES.sub('#', str(error))[:160]}"
    except TooSlowError:
        return f"took more than {HANGS:g} s", "slow"
    except Exception as error:
        return "".join(traceback.format_exception(error)), type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None, ""


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGPROF, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)


def _peak() -> int:
    """Return the most memory that this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _bound_memory() -> None:
    """Let no input have more address space than any may ask for: what does gets a MemoryError, a finding."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _SPACE, now + _SPACE))


def main(words: Sequence[str] | None = None) -> int:
    """Run the program; return 1 if there are findings."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--inputs", type=int, default=1_000_000, help="of all parsers together")
    options.add_argument("--seed", type=int, default=None, help="of the draws; default: the time")
    options.add_argument("--only", action="append", help="a parser, by name; default: all")
    options.add_argument("--findings", type=Path, help="folder for the inputs that were found")
    chosen = options.parse_args(words)
    seed = time.time_ns() if chosen.seed is None else chosen.seed
    counts: list[Count] = []
    with (
        tempfile.TemporaryDirectory(prefix="fenchel-fuzz-") as folder,
        contextlib.closing(asyncio.new_event_loop()) as loop,
    ):
        targets = [each for each in parsers(Path(folder), loop) if not chosen.only or each.name in chosen.only]
        weights = sum(target.weight for target in targets)
        _bound_memory()
        print(f"seed {seed}", flush=True)
        for target in targets:
            counts.append(fuzz(target, -(-chosen.inputs * target.weight // weights), seed))
            print(counts[-1], flush=True)
    findings = [finding for count in counts for finding in count.findings]
    inputs, seconds = sum(count.inputs for count in counts), sum(count.seconds for count in counts)
    print(f"{inputs:,} inputs, {seconds:.0f} s, {len(findings)} findings")
    seen: set[str] = set()
    for number, finding in enumerate(findings):
        if chosen.findings is not None:
            chosen.findings.mkdir(parents=True, exist_ok=True)
            (chosen.findings / f"{finding.parser}-{number}").write_bytes(finding.data)
        if (last := finding.what.strip().splitlines()[-1][:60]) not in seen:
            seen.add(last)
            print(f"\n{finding.parser}: {finding.data[:300]!r}\n{finding.what}")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
