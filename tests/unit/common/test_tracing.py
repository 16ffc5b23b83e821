"""A run is one trace: rounds below the run, phases below rounds, and clients' instructions below phases."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fenchel.client.tracing import ClientTraces
from fenchel.common.errors import RunStoppedError, SettingsError
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.telemetry.tracing import Tracing, tracing
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.telemetry.observer import Observers
from fenchel.server.telemetry.tracing import ServerTraces
from tests.messages import raises
from tests.observing import Calling

SETTINGS = validate(
    {
        "name": "traced",
        "rounds": 2,
        "clients": 2,
        "data": {"name": "digits", "samples": 200},
        "objective": {"kind": "softmax", "l2": 1e-4},
        "algorithm": {"name": "fedavg", "local_epochs": 1, "batch_size": 64, "step_size": 0.5},
    }
)


def in_memory() -> tuple[Tracing, InMemorySpanExporter]:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return Tracing(provider), kept


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def identity(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found


def above(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_a_run_is_a_tree_of_spans_whose_times_lie_within_each_other(tmp_path: Path) -> None:
    made, kept = in_memory()
    folder = RunFolder.create(tmp_path, "traced")
    with ServerTraces(made, folder.id) as traces:
        asyncio.run(run_in_process(SETTINGS, folder, observer=traces))
    spans = kept.get_finished_spans()
    (run,) = named(spans, "run")
    rounds = named(spans, "round")
    assert above(run) is None
    assert [above(each) for each in rounds] == [identity(run)] * 2
    assert [each.attributes["fenchel.round"] for each in rounds if each.attributes] == [1, 2]
    for phase in ("phase train", "phase fenchel.evaluate"):
        assert [above(each) for each in named(spans, phase)] == [identity(each) for each in rounds]
    by_id = {identity(span): span for span in spans}
    for span in spans:
        parent = above(span)
        if parent is not None:
            outer = by_id[parent]
            assert outer.start_time is not None
            assert outer.end_time is not None
            assert span.start_time is not None
            assert span.end_time is not None
            assert outer.start_time <= span.start_time <= span.end_time
            assert span.end_time <= outer.end_time + 1_000_000  # two clocks: the phase's end is by the other one


def test_a_run_that_stops_leaves_no_span_open_and_says_of_what_kind_it_was(tmp_path: Path) -> None:
    made, kept = in_memory()
    folder = RunFolder.create(tmp_path, "traced")

    def stop(t: int) -> None:
        if t == 2:
            raise RunStoppedError("enough of it")

    with raises(RunStoppedError), ServerTraces(made, folder.id) as traces:
        asyncio.run(run_in_process(SETTINGS, folder, observer=Observers(traces, Calling(round_begun=stop))))
    (run,) = named(kept.get_finished_spans(), "run")
    assert not run.status.is_ok
    assert run.status.description == "RunStoppedError"
    assert len(named(kept.get_finished_spans(), "round")) == 2


def test_an_instruction_is_below_the_question_that_it_names() -> None:
    made, kept = in_memory()
    question = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    reply = pb.Reply(timing=pb.Timing(received_unix_ns=5_000, receive_ns=1_000, answer_ns=3_000, compute_ns=2_000))
    with ClientTraces(made) as observer:
        stream = observer.opening("client-000")
        observer.answered("client-000", pb.Instruction(phase="train", round=3, traceparent=question), reply, 8)
        observer.answered("client-000", pb.Instruction(phase="plain", round=3), pb.Reply(failure="no luck"), 0)
        observer.answered("client-000", pb.Instruction(phase="odd", round=3, traceparent="rubbish\n"), reply, 8)
    spans = kept.get_finished_spans()
    (asked,) = named(spans, "instruction train")
    assert asked.context is not None
    assert format(asked.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
    assert above(asked) == 0xB7AD6B7169203331
    assert (asked.start_time, asked.end_time) == (4_000, 8_000)
    (opened,) = named(spans, "stream")
    assert stream.split("-")[2] == format(identity(opened), "016x")
    (plain,) = named(spans, "instruction plain")
    assert above(plain) == identity(opened)
    assert not plain.status.is_ok
    assert "no luck" not in str(plain.status.description)
    (odd,) = named(spans, "instruction odd")
    assert above(odd) is None


def test_streams_of_clients_are_linked_from_the_run_and_nonsense_is_not(tmp_path: Path) -> None:
    made, kept = in_memory()
    folder = RunFolder.create(tmp_path, "traced")
    with ServerTraces(made, folder.id) as traces:

        def opened(t: int) -> None:
            for words in ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x" * 5000, "00-0-0-0", ""):
                traces.stream_opened("client-000", words)

        beside = Observers(traces, Calling(round_begun=lambda t: opened(t) if t == 1 else None))
        asyncio.run(run_in_process(SETTINGS, folder, observer=beside))
    (run,) = named(kept.get_finished_spans(), "run")
    assert [link.context.span_id for link in run.links] == [0xB7AD6B7169203331]


@pytest.mark.parametrize(
    "environment", [{}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}]
)
def test_traces_are_off_unless_they_are_asked_for(environment: dict[str, str]) -> None:
    assert tracing("fenchel-server", environment) is None


def test_an_exporter_that_there_is_not_is_named() -> None:
    with raises(SettingsError):
        tracing("fenchel-server", {"OTEL_TRACES_EXPORTER": "zipkin"})


def test_a_collector_that_is_not_there_is_named_once_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    script = (
        "import logging\n"
        "from fenchel.common.telemetry.tracing import tracing\n"
        "from fenchel.deploy.launch.logs import log_to_terminal\n"
        "log_to_terminal(logging.WARNING)\n"
        "made = tracing('fenchel-client')\n"
        "for name in ('stream', 'instruction train'):\n"
        "    made.tracer.start_span(name).end()\n"
        "    made._provider.force_flush()\n"
        "made.close()\n"
    )
    asked = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": nowhere, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | asked, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    # A busy machine may reach the timeout before the connection is refused.
    assert line.replace("DEADLINE_EXCEEDED", "UNAVAILABLE").startswith(
        f"WARNING traces cannot be sent to {nowhere} (UNAVAILABLE)"
    )


def test_neither_library_is_imported_unless_it_is_asked_for() -> None:
    script = (
        "import sys, fenchel.server.telemetry.tracing, fenchel.server.telemetry.metrics\n"
        "import fenchel.client.tracing, fenchel.client.metrics\n"
        "import fenchel.deploy.monitoring.exporters, fenchel.deploy.cli.up\n"
        "from fenchel.common.telemetry.tracing import tracing\n"
        "assert tracing('x', {}) is None\n"
        "assert not {'opentelemetry', 'prometheus_client'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
