"""A model of a disk that loses its power: what a process told it, and all that may be left of it afterwards.

:func:`recording` notes every call by which this process changes files below a folder.
:meth:`Recording.after_power` yields what a machine may find there that lost its power after some of these
calls, by what POSIX promises and no more:

* bytes of a file are certainly there once the file was synced after they were written. What was written since is there,
  is not, is there in part, or has left its length and zeros;
* a name is certainly there, or gone, once its *folder* was synced; syncing a file says nothing of its name. Of the
  changes since, any may be there and any missing, each as a whole. A folder without a name takes along what
  is in it;
* what one call did may be there although what an earlier one did is not.

The idea is that of ALICE (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014).
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]
import builtins
import io
import itertools
import os
import random
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, TypeAlias
from unittest import mock


@dataclass(frozen=True)
class Node:
    """A file, or a folder, whatever its names."""

    number: int
    is_folder: bool


@dataclass(frozen=True)
class Wrote:
    """Bytes were written at a place of a file."""

    node: Node
    offset: int
    content: bytes


@dataclass(frozen=True)
class Cut:
    """A file was given another length."""

    node: Node
    size: int


@dataclass(frozen=True)
class Opened:
    """A file was given rights (``mode``): when it was made, or later."""

    node: Node
    mode: int


@dataclass(frozen=True)
class Named:
    """Names in folders have changed, at once: what each stands for now, or ``None``."""

    names: tuple[tuple[Node, str, Node | None], ...]


@dataclass(frozen=True)
class Synced:
    """The disk was made to keep a file's bytes, or a folder's names."""

    node: Node


@dataclass(frozen=True)
class Promised:
    """The process has promised something to somebody: it counts from here on."""

    what: Any


Call: TypeAlias = Wrote | Cut | Opened | Named | Synced | Promised

Tree: TypeAlias = Mapping[PurePath, bytes | None]
"""Files and their bytes; ``None`` stands for a folder."""


def _none(before: bytearray, calls: Sequence[Wrote | Cut]) -> None:
    """Nothing of what was not synced is there."""


def _all(content: bytearray, calls: Sequence[Wrote | Cut]) -> None:
    for call in calls:
        _apply(content, call)


def _torn(content: bytearray, calls: Sequence[Wrote | Cut]) -> None:
    """The first half of the bytes is there."""
    left = sum(len(call.content) for call in calls if isinstance(call, Wrote)) // 2
    for call in calls:
        if isinstance(call, Wrote):
            _apply(content, Wrote(call.node, call.offset, call.content[:left]))
            left = max(left - len(call.content), 0)
        else:
            _apply(content, call)


def _zeros(content: bytearray, calls: Sequence[Wrote | Cut]) -> None:
    """The length is there, and the bytes are not."""
    for call in calls:
        _apply(content, Wrote(call.node, call.offset, bytes(len(call.content))) if isinstance(call, Wrote) else call)


def _second_half(content: bytearray, calls: Sequence[Wrote | Cut]) -> None:
    """The second half of the bytes is there, behind zeros."""
    missing = sum(len(call.content) for call in calls if isinstance(call, Wrote)) // 2
    for call in calls:
        if isinstance(call, Wrote):
            lost = min(missing, len(call.content))
            missing -= lost
            _apply(content, Wrote(call.node, call.offset, bytes(lost) + call.content[lost:]))
        else:
            _apply(content, call)


Fate: TypeAlias = Callable[[bytearray, Sequence[Wrote | Cut]], None]
FATES: tuple[Fate, ...] = (_none, _all, _torn, _zeros, _second_half)


def _apply(content: bytearray, call: Wrote | Cut) -> None:
    if isinstance(call, Cut):
        del content[call.size :]
        content.extend(bytes(call.size - len(content)))
    elif call.content:
        content.extend(bytes(max(call.offset - len(content), 0)))
        content[call.offset : call.offset + len(call.content)] = call.content


@dataclass
class Recording:
    """What a process did to the files below a folder, in order.

    Attributes
    ----------
    root
        The folder.
    calls
        What was done.
    """

    root: Path
    calls: list[Call] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _folder: Node = field(default_factory=lambda: Node(-1, True))
    _nodes: dict[tuple[int, int], Node] = field(default_factory=dict)
    _names: dict[tuple[Node, str], Node] = field(default_factory=dict)
    _contents: dict[Node, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take what is there: it has been synced long ago."""
        self._know(self.root.stat(), self._folder)
        for path in sorted(self.root.rglob("*")):
            node = self._new(path.stat(), path.is_dir())
            self._names[self._folder_of(path), path.name] = node
            if not node.is_folder:
                self._contents[node] = path.read_bytes()

    def promise(self, what: Any) -> None:
        """Note that something counts from here on."""
        self.calls.append(Promised(what))

    def promises(self, prefix: int) -> list[Any]:
        """Return what had been promised when so many calls had been made."""
        return [call.what for call in self.calls[:prefix] if isinstance(call, Promised)]

    # What is left

    def after_kill(self, prefix: int) -> Tree:
        """Return what is there if the process died after so many calls, and the machine did not."""
        names = dict(self._names)
        contents = {node: bytearray(content) for node, content in self._contents.items()}
        for call in self.calls[:prefix]:
            if isinstance(call, Named):
                _rename(names, call)
            elif isinstance(call, Wrote | Cut):
                _apply(contents.setdefault(call.node, bytearray()), call)
        return self._tree(names, {node: bytes(content) for node, content in contents.items()})

    def after_power(self, prefix: int, chance: random.Random | None = None) -> Iterator[Tree]:
        """Yield what may be there if the machine lost its power after so many calls: everything that may be, or,
        by a source of random draws, one of them."""
        calls = self.calls[:prefix]
        synced = {call.node: place for place, call in enumerate(calls) if isinstance(call, Synced)}
        open_names = [
            place
            for place, call in enumerate(calls)
            if isinstance(call, Named) and any(place > synced.get(folder, -1) for folder, _, _ in call.names)
        ]
        subsets: Iterator[set[int]]
        if chance is None:
            sizes = range(len(open_names) + 1)
            subsets = (set(lost) for size in sizes for lost in itertools.combinations(open_names, size))
        else:
            likely = chance.choice((0.0, 0.05, 0.2, 0.5, 0.9))
            subsets = iter([{place for place in open_names if chance.random() < likely}])
        for lost in subsets:
            names = dict(self._names)
            for place, call in enumerate(calls):
                if isinstance(call, Named) and place not in lost:
                    _rename(names, call)
            yield from self._fates(names, calls, synced, chance)

    def _fates(
        self,
        names: Mapping[tuple[Node, str], Node],
        calls: Sequence[Call],
        synced: Mapping[Node, int],
        chance: random.Random | None,
    ) -> Iterator[Tree]:
        reached = sorted(set(self._reached(names).values()), key=lambda node: node.number)
        certain: dict[Node, bytearray] = {}
        since: dict[Node, list[Wrote | Cut]] = {}
        for node in reached:
            if not node.is_folder:
                certain[node] = bytearray(self._contents.get(node, b""))
                since[node] = []
        for place, call in enumerate(calls):
            if isinstance(call, Wrote | Cut) and call.node in certain:
                if place < synced.get(call.node, -1):
                    _apply(certain[call.node], call)
                else:
                    since[call.node].append(call)
        in_doubt = [node for node, left in since.items() if left]
        fates: Iterator[tuple[Fate, ...]]
        harm = 1.0 if chance is None else chance.choice((0.0, 0.2, 1.0))  # often only few files suffer
        if chance is None:
            fates = itertools.product(FATES, repeat=len(in_doubt))
        else:
            fates = iter(
                [tuple(chance.choice((_all, *FATES, _all)) if chance.random() < harm else _all for _ in in_doubt)]
            )
        for drawn in fates:
            contents = {node: bytes(content) for node, content in certain.items()}
            for node, fate in zip(in_doubt, drawn, strict=True):
                content = bytearray(certain[node])
                fate(content, since[node])
                contents[node] = bytes(content)
            yield self._tree(names, contents)

    def _reached(self, names: Mapping[tuple[Node, str], Node]) -> dict[PurePath, Node]:
        """Return what can be found from the root on, by its path."""
        found: dict[PurePath, Node] = {}
        below: dict[Node, list[tuple[str, Node]]] = {}
        for (folder, name), node in names.items():
            below.setdefault(folder, []).append((name, node))
        ahead = [(PurePath(), self._folder)]
        while ahead:
            path, folder = ahead.pop()
            for name, node in below.get(folder, ()):
                found[path / name] = node
                if node.is_folder:
                    ahead.append((path / name, node))
        return found

    def _tree(self, names: Mapping[tuple[Node, str], Node], contents: Mapping[Node, bytes]) -> Tree:
        return {
            path: None if node.is_folder else contents.get(node, b"")
            for path, node in sorted(self._reached(names).items())
        }

    # What is done

    def _new(self, found: os.stat_result, is_folder: bool) -> Node:
        return self._know(found, Node(next(self._numbers), is_folder))

    def _know(self, found: os.stat_result, node: Node) -> Node:
        self._nodes[found.st_dev, found.st_ino] = node  # a number that was free counts from now on for this one
        return node

    def _node(self, found: os.stat_result) -> Node:
        return self._nodes[found.st_dev, found.st_ino]

    def _folder_of(self, path: Path) -> Node:
        return self._node(path.parent.stat())

    def covers(self, path: Any) -> Path | None:
        """Return a path that is watched, absolute; ``None`` for any other."""
        if isinstance(path, int):
            return None
        absolute = Path(os.fsdecode(path)).absolute()
        return absolute if absolute.is_relative_to(self.root) else None

    def known(self, descriptor: int) -> Node | None:
        """Return what a descriptor stands for, if that is watched."""
        found = os.fstat(descriptor)
        return self._nodes.get((found.st_dev, found.st_ino))

    def made(self, path: Path, found: os.stat_result) -> None:
        """Note a file or folder that was not there before."""
        node = self._new(found, stat.S_ISDIR(found.st_mode))
        self.calls.append(Opened(node, stat.S_IMODE(found.st_mode)))
        self.calls.append(Named(((self._folder_of(path), path.name, node),)))

    def moved(self, source: Path, target: Path, node: Node) -> None:
        """Note a new name instead of an old one."""
        old, new = (self._folder_of(source), source.name, None), (self._folder_of(target), target.name, node)
        self.calls.append(Named((old, new)))


def _rename(names: dict[tuple[Node, str], Node], call: Named) -> None:
    for folder, name, node in call.names:
        if node is None:
            names.pop((folder, name), None)
        else:
            names[folder, name] = node


@contextmanager
def recording(root: Path) -> Iterator[Recording]:
    """Record what happens to the files below ``root`` in a ``with`` block, through Python's ``os`` and files.

    Files are opened by Python's own implementation meanwhile, all of whose calls go through ``os``. At the end all
    calls together must have led to the files that are really there: so a way of writing that is not recorded fails
    the test that uses it.
    """
    root = root.resolve()
    found = Recording(root)
    real = {name: getattr(os, name) for name in ("open", "write", "ftruncate", "fsync", "replace", "rename", "link",
            "unlink", "remove", "mkdir", "rmdir", "chmod", "fchmod")}  # fmt: skip

    def opened(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        watched = found.covers(path)
        was_there = watched is not None and os.path.lexists(watched)
        descriptor: int = real["open"](path, flags, mode, **more)
        if watched is not None and not was_there:
            found.made(watched, os.fstat(descriptor))
        elif watched is not None and flags & os.O_TRUNC:
            node = found.known(descriptor)
            assert node is not None
            found.calls.append(Cut(node, 0))
        return descriptor

    def write(descriptor: int, content: Any) -> int:
        node = found.known(descriptor)
        at_end = node is not None and bool(os.O_APPEND & _flags(descriptor))
        before = 0 if node is None else os.fstat(descriptor).st_size if at_end else os.lseek(descriptor, 0, 1)
        written: int = real["write"](descriptor, content)
        if node is not None:
            found.calls.append(Wrote(node, before, bytes(content)[:written]))
        return written

    def cut(descriptor: int, size: int) -> None:
        real["ftruncate"](descriptor, size)
        if (node := found.known(descriptor)) is not None:
            found.calls.append(Cut(node, size))

    def sync(descriptor: int) -> None:
        real["fsync"](descriptor)
        if (node := found.known(descriptor)) is not None:
            found.calls.append(Synced(node))

    def replace(source: Any, target: Any, **more: Any) -> None:
        old, new = found.covers(source), found.covers(target)
        node = None if old is None else found._node(old.lstat())
        real["replace"](source, target, **more)
        if old is not None and new is not None and node is not None:
            found.moved(old, new, node)

    def link(source: Any, target: Any, **more: Any) -> None:
        real["link"](source, target, **more)
        if (new := found.covers(target)) is not None:
            found.calls.append(Named(((found._folder_of(new), new.name, found._node(new.lstat())),)))

    def remove(path: Any, **more: Any) -> None:
        real["unlink"](path, **more)
        if (old := found.covers(path)) is not None:
            found.calls.append(Named(((found._folder_of(old), old.name, None),)))

    def make_folder(path: Any, mode: int = 0o777, **more: Any) -> None:
        real["mkdir"](path, mode, **more)
        if (new := found.covers(path)) is not None:
            found.made(new, new.stat())

    def remove_folder(path: Any, **more: Any) -> None:
        real["rmdir"](path, **more)
        if (old := found.covers(path)) is not None:
            found.calls.append(Named(((found._folder_of(old), old.name, None),)))

    def give_rights(path: Any, mode: int, **more: Any) -> None:
        real["chmod"](path, mode, **more)
        watched = found.covers(path)
        node = found.known(path) if isinstance(path, int) else watched and found._node(watched.stat())
        if node:
            found.calls.append(Opened(node, mode))

    fakes: dict[str, Any] = {
        "open": opened, "write": write, "ftruncate": cut, "fsync": sync, "fdatasync": sync, "replace": replace,
        "rename": replace, "link": link, "unlink": remove, "remove": remove, "mkdir": make_folder,
        "rmdir": remove_folder, "chmod": give_rights, "fchmod": give_rights,
    }  # fmt: skip
    with (
        mock.patch.multiple(os, **fakes),
        mock.patch.object(io, "open", _pyio.open),
        mock.patch.object(builtins, "open", _pyio.open),
    ):
        yield found
    assert found.after_kill(len(found.calls)) == tree_of(root), "something was written in a way that is not recorded"


def _flags(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_GETFL)


def tree_of(folder: Path) -> Tree:
    """Return what is in a folder."""
    return {
        PurePath(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def lay_out(tree: Tree, folder: Path) -> Path:
    """Make files as they are in a tree, readable by their owner only."""
    folder.mkdir(parents=True)
    for path, content in tree.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            place.mkdir(exist_ok=True)
        else:
            place.touch(mode=0o600)
            place.write_bytes(content)
    return folder
