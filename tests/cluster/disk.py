"""A disk of its own for a test, which can be made full or read-only while processes use it.

It lies in a mount namespace that a shell keeps open. A test sees it through that shell's root,
``/proc/PID/root``, and has its processes begin within the namespace. Where nobody but root may mount, a user
namespace gives the right to.
"""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_NAMESPACES = (("--mount",), ("--user", "--map-root-user", "--mount"))
_FILLER = "filler"
_BLOCK = 4096


class NoDiskError(Exception):
    """This machine gives a test no disk of its own."""


@dataclass
class Disk:
    """A disk in memory.

    Attributes
    ----------
    folder
        Where it is, for this process and for those within.
    within
        Words that begin a command that is to run within the namespace.
    """

    folder: Path
    within: tuple[str, ...]
    _shell: subprocess.Popen[str]

    @classmethod
    def mounted(cls, place: Path, size: str = "256m") -> Self:
        """Mount a disk on a folder, in a namespace of its own.

        Raises
        ------
        NoDiskError
            It cannot be done here.
        """
        refusals = []
        for words in _NAMESPACES:
            try:
                shell = subprocess.Popen(
                    ["unshare", *words, "sh"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            except OSError as error:
                raise NoDiskError(f"unshare: {error.strerror}") from None
            enter = ("nsenter", f"--target={shell.pid}", *words, f"--wd={Path.cwd()}", "--")
            enter = tuple(word.replace("--map-root-user", "--preserve-credentials") for word in enter)
            disk = cls(Path(f"/proc/{shell.pid}/root{place.absolute()}"), enter, shell)
            try:
                disk._do("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place.absolute()))
                subprocess.run([*enter, "true"], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                refusals.append(str(error))
                disk.end()
            else:
                return disk
        raise NoDiskError("; ".join(refusals))

    def mount(self, folder: Path, size: str) -> None:
        """Mount a small disk on a folder of this one."""
        folder.mkdir(parents=True, exist_ok=True)
        self._do("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", self._inside(folder))

    def fill(self, folder: Path) -> None:
        """Write on the disk of a folder until nothing more fits."""
        with (folder / _FILLER).open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(_BLOCK))
                except OSError:
                    return

    def make_room(self, folder: Path) -> None:
        """Take back what :meth:`fill` wrote."""
        (folder / _FILLER).unlink()

    def freeze(self, folder: Path) -> None:
        """Let nothing below a folder be changed."""
        inside = self._inside(folder)
        self._do("mount", "--bind", inside, inside)
        self._do("mount", "-o", "remount,bind,ro", inside)

    def thaw(self, folder: Path) -> None:
        """Take back what :meth:`freeze` did."""
        self._do("umount", "--lazy", self._inside(folder))

    def end(self) -> None:
        """Have the disk vanish, once no process uses it."""
        self._shell.kill()
        self._shell.communicate()

    def _inside(self, folder: Path) -> str:
        return "/" + str(folder.relative_to(Path(f"/proc/{self._shell.pid}/root")))

    def _do(self, *words: str) -> None:
        """Run a command in the namespace; raise what it says if it fails."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        try:
            self._shell.stdin.write(f"{shlex.join(words)}; echo; echo ended $?\n")
            self._shell.stdin.flush()
        except BrokenPipeError:
            pass  # it has said why
        said = []
        for line in self._shell.stdout:
            if line.startswith("ended "):
                if line != "ended 0\n":
                    break
                return
            said.append(line.strip())
        raise OSError(" ".join(filter(None, said)) or "the namespace has ended")
