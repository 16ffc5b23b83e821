"""Several clients in one process, each with its own connection, stream, identity and state."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from fenchel.client.connection import Connection
from fenchel.client.joining import Participant
from fenchel.client.observer import ClientObserver
from fenchel.common.environment import one_thread
from fenchel.common.errors import JoinRefusedError
from fenchel.common.slots import SlotExecutor
from fenchel.common.wire.buffer_pool import keep_freed_memory
from fenchel.proto import fenchel_pb2 as pb

log = logging.getLogger("fenchel.client")


class LifelineError(Exception):
    """Error raised if the parent process closes its end of the lifeline pipe, or dies."""


async def host(
    participants: Sequence[Participant],
    *,
    threads: int = 1,
    lifeline: int | None = None,
    on_event: Callable[[str], None],
    observer: ClientObserver | None = None,
) -> list[pb.Farewell]:
    """Run several clients concurrently until the server has sent its farewell to each of them.

    Parameters
    ----------
    threads
        Number of clients that compute at the same time.
    lifeline
        File descriptor of a pipe that the parent process keeps open; ``None``: no pipe is watched.

    Returns
    -------
    list[pb.Farewell]
        The server's farewell to each client, in no particular order.

    Raises
    ------
    JoinRefusedError
        If the server refuses a client. The error is raised once all other clients have ended.
    FenchelError
        If a client cannot take part for another reason, such as settings that exceed its trust limits. All other
        clients are cancelled.
    LifelineError
        If the parent process closes the pipe. All clients are cancelled.
    """
    keep_freed_memory()
    with one_thread(), SlotExecutor(threads, len(participants)) as executor:
        observer, joint = observer or ClientObserver(), len(participants) > 1
        connections = (Connection(who, executor, on_event, observer, joint=joint) for who in participants)
        working = [asyncio.create_task(connection.take_part()) for connection in connections]
        tasks: set[asyncio.Task[Any]] = set(working)
        if lifeline is not None:
            tasks.add(asyncio.create_task(_watch(lifeline)))
        refusals: list[JoinRefusedError] = []
        try:
            while not all(task.done() for task in working):
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        task.result()
                    except JoinRefusedError as error:
                        refusals.append(error)
                        if left := sum(not other.done() for other in working):
                            log.error("%s. The process continues with its other clients (%d)", error, left)
                tasks -= done
            if refusals:
                raise refusals[-1]
            return [task.result() for task in working]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(lifeline: int) -> None:
    """Raise :class:`LifelineError` once the pipe is closed."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def read() -> None:
        if not os.read(lifeline, 1 << 16):
            ended.set()

    loop.add_reader(lifeline, read)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(lifeline)
    raise LifelineError
