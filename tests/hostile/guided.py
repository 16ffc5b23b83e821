"""The same parsers under a fuzzer that is guided by coverage: atheris, which is libFuzzer for Python.

``make fuzz-guided`` runs it. Where :mod:`tests.hostile.fuzz` knows the formats and damages them with a
purpose, this one knows nothing and sees which lines of Fenchel an input reaches. Each parser runs in a
process of its own, as libFuzzer ends its process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_PACKAGES = ["client", "common", "deploy", "server"]
_SECONDS = 5  # for one input; instrumented code is several times slower
_MEBIBYTES = 4096  # what a process may have
_LARGEST = 1 << 16  # bytes of an input


def _one(name: str, runs: int, corpus: Path) -> NoReturn:
    """Fuzz a parser in this process, and end it."""
    import atheris

    with atheris.instrument_imports(include=_PACKAGES):
        from tests.hostile.parsers import parsers

    with (
        tempfile.TemporaryDirectory(prefix="fenchel-fuzz-") as folder,
        contextlib.closing(asyncio.new_event_loop()) as loop,
    ):
        (target,) = (each for each in parsers(Path(folder), loop) if each.name == name)
        for number, seed in enumerate(target.seeds):
            (corpus / f"seed-{number}").write_bytes(seed)

        def parse(data: bytes) -> None:
            with contextlib.suppress(*target.refusals):
                target.parse(data)

        flags = [f"-runs={runs}", f"-timeout={_SECONDS}", f"-rss_limit_mb={_MEBIBYTES}", f"-max_len={_LARGEST}"]
        atheris.Setup([sys.argv[0], *flags, f"-artifact_prefix={corpus.parent}/", str(corpus)], parse)
        atheris.Fuzz()
    raise AssertionError("libFuzzer ends its process")


def _names() -> list[str]:
    from tests.hostile.parsers import parsers

    with tempfile.TemporaryDirectory() as folder, contextlib.closing(asyncio.new_event_loop()) as loop:
        return [each.name for each in parsers(Path(folder), loop)]


def main(words: Sequence[str] | None = None) -> int:
    """Run the program; return 1 if there are findings."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--inputs", type=int, default=20_000, help="of each parser")
    options.add_argument("--only", action="append", help="a parser, by name; default: all")
    options.add_argument("--findings", type=Path, help="folder for the inputs that were found")
    options.add_argument("--one", nargs=2, metavar=("PARSER", "CORPUS"), help=argparse.SUPPRESS)
    chosen = options.parse_args(words)
    if chosen.one:
        _one(chosen.one[0], chosen.inputs, Path(chosen.one[1]))
    findings = 0
    for name in chosen.only or _names():
        with tempfile.TemporaryDirectory(prefix="fenchel-guided-") as folder:
            corpus = Path(folder) / "corpus"
            corpus.mkdir()
            started = time.perf_counter()
            me = [sys.executable, "-W", "ignore", "-m", "tests.hostile.guided", "--inputs", str(chosen.inputs)]
            done = subprocess.run(
                [*me, "--one", name, str(corpus)], capture_output=True, text=True, errors="replace", check=False
            )
            covered = re.findall(r"cov: (\d+)", done.stderr)
            print(
                f"{name:16} {chosen.inputs:>9,} inputs {covered[-1] if covered else '?':>7} edges "
                f"{time.perf_counter() - started:>8.1f} s {'finding' if done.returncode else 'ok'}",
                flush=True,
            )
            if done.returncode:
                findings += 1
                print(done.stderr[-3000:])
                for found in Path(folder).glob("*-*"):
                    if chosen.findings is not None and found.is_file():
                        chosen.findings.mkdir(parents=True, exist_ok=True)
                        (chosen.findings / f"{name}-{found.name}").write_bytes(found.read_bytes())
    print(f"{findings} findings")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
