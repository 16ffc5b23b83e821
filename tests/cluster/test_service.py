"""The gRPC service as its standard tools see it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from fenchel.common.settings.run import load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.frames import FRAME_BYTES
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import CoordinatorStub
from fenchel.server.coordinator import Coordinator
from fenchel.server.transport.service import listening

pytestmark = pytest.mark.cluster

NAME = "fenchel.v1.Coordinator"


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(load(Path("experiments/fedavg-digits.yaml")), RunFolder.create(tmp_path, "service"))


async def test_health_checks_and_reflection_answer(coordinator: Coordinator) -> None:
    async with listening(coordinator, "127.0.0.1:0", None, 20.0) as port:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                health_pb2.HealthCheckRequest.SerializeToString,
                health_pb2.HealthCheckResponse.FromString,
            )
            for service in ("", NAME):
                answer = await check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING

        def reflected() -> tuple[list[str], list[str]]:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                found = DescriptorPool(database).FindServiceByName(NAME)
                return list(database.get_services()), [method.name for method in found.methods]

        services, methods = await asyncio.to_thread(reflected)
        assert {NAME, "grpc.health.v1.Health"} <= set(services)
        assert methods == ["Join", "Work", "Probe"]


async def test_a_probe_that_asks_for_too_much_is_refused_and_an_honest_one_answered(coordinator: Coordinator) -> None:
    async with (
        listening(coordinator, "127.0.0.1:0", None, 20.0) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        probe = CoordinatorStub(channel).Probe
        reply: pb.ProbeReply = await probe(pb.ProbeRequest(payload=b"x" * 1000, reply_bytes=5))
        assert len(reply.payload) == 5
        assert 0 < reply.received_unix_ns <= reply.sent_unix_ns
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await probe(pb.ProbeRequest(reply_bytes=FRAME_BYTES + 1))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_frame_beyond_one_mebibyte_is_not_accepted(coordinator: Coordinator) -> None:
    async with (
        listening(coordinator, "127.0.0.1:0", None, 20.0) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await CoordinatorStub(channel).Probe(pb.ProbeRequest(payload=bytes(FRAME_BYTES + 2048)))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
