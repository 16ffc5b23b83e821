"""What Prometheus and Grafana are given fits what Fenchel says: every query names metrics and labels that exist."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from itertools import chain
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fenchel.client.metrics import ClientMetrics
from fenchel.common.settings.run import load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.cli.main import application
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.telemetry.metrics import ServerMetrics
from tests.unit.deploy.test_compose import config

ROOT = Path(__file__).parents[3]
BASIS, OVERLAY = "docker-compose.yml", "deploy/compose.monitoring.yml"
MONITORING = ROOT / "deploy" / "monitoring"
PAGE = ROOT / "docs" / "monitoring.md"


Series = dict[str, list[dict[str, str]]]
"""The labels of each series, by its name."""


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """What both roles say of a run of two rounds: the same objects that ``--metrics`` serves."""
    settings = load(ROOT / "fenchel/experiments/fedavg-digits.yaml", ["rounds=2", "data.samples=200"])
    server, client = ServerMetrics("run", settings), ClientMetrics()
    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), "watched")
    asyncio.run(run_in_process(settings, folder, observer=server))
    client.opening("client-000")
    client.round_trip("client-000", 0.01)
    client.answered("client-000", pb.Instruction(phase="train"), pb.Reply(timing=pb.Timing(answer_ns=5)), 80)
    found: Series = {}
    for metrics in (server, client):
        for family in text_string_to_metric_families(metrics.exposition.text().decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)
    endings = {"counter": ["_total"], "info": ["_info"], "histogram": ["_bucket", "_sum", "_count"]}
    for family in chain(server.exposition._registry.collect(), client.exposition._registry.collect()):
        assert set(found) >= {family.name + ending for ending in endings.get(family.type, [""])}
    return found


@pytest.fixture(scope="module")
def names(series: Series) -> set[str]:
    return set(series)


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "grafana" / "fenchel.json").read_text())
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in board()["panels"] for target in panel.get("targets", [])]


def named(query: str) -> set[str]:
    return set(re.findall(r"\bfenchel_\w+", query))


def test_there_are_metrics_of_both_roles(names: set[str]) -> None:
    assert {"fenchel_rounds_total", "fenchel_call_seconds_bucket", "fenchel_client_part_seconds_total"} <= names
    assert len(names) > 25


def parsed(query: str) -> Any:
    """Return a query as Prometheus reads it, after Grafana has put in how long it looks back."""
    return promql_parser.parse(query.replace("$__rate_interval", "20s"))


def parts(query: str) -> list[Any]:
    """Return all expressions of a query, those inside others included."""
    found: list[Any] = []
    promql_parser.walk(parsed(query), found.append)
    selectors = [part.vector_selector for part in found if isinstance(part, promql_parser.MatrixSelector)]
    return [*found, *selectors]


@pytest.mark.parametrize("query", queries())
def test_a_query_of_the_dashboard_names_series_and_labels_that_exist(query: str, series: Series) -> None:
    selectors = [part for part in parts(query) if isinstance(part, promql_parser.VectorSelector)]
    assert {selector.name for selector in selectors} == named(query)
    for selector in selectors:
        assert selector.name in series
        known = series[selector.name]
        for matcher in selector.matchers.matchers:
            values = {labels[matcher.name] for labels in known}
            if matcher.op == promql_parser.MatchOp.Equal:
                # Nobody is lost in so short a run, but the series is there.
                assert matcher.value in values
    for part in parts(query):
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            labels = set(series[next(iter(named(str(part.expr))))][0])
            assert set(part.modifier.labels) <= labels


@pytest.mark.parametrize("query", [query for query in queries() if "[" in query])
def test_how_far_a_query_looks_back_follows_from_how_often_prometheus_asks(query: str) -> None:
    assert set(re.findall(r"\[([^]]*)\]", query)) == {"$__rate_interval"}
    # Grafana takes four times what the source of data says, which must be how often it is asked.
    asks = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert sources()["jsonData"]["timeInterval"] == asks


def test_a_query_that_prometheus_would_refuse_is_found() -> None:
    for wrong in ("rate(fenchel_rounds_total)", "sum by (le rate(x[20s])", "fenchel_round{"):
        with pytest.raises(ValueError):
            parsed(wrong)


def test_a_histogram_is_asked_for_by_its_buckets_and_a_counter_by_its_rate() -> None:
    for query in queries():
        for name in named(query):
            if name.endswith("_bucket"):
                assert "histogram_quantile" in query
                assert re.search(rf"by \([^)]*le[^)]*\) \(rate\({name}\[", query)
            elif name.endswith("_total") and name != "fenchel_client_streams_total":
                assert re.search(rf"(rate|increase)\({name}(\{{[^}}]*\}})?\[", query)


def test_panels_do_not_lie_over_each_other_and_know_their_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == sources()["uid"]
    identifiers = [panel["id"] for panel in board()["panels"]]
    assert len(identifiers) == len(set(identifiers))


def sources() -> dict[str, Any]:
    (source,) = yaml.safe_load((MONITORING / "grafana" / "datasources.yml").read_text())["datasources"]
    found: dict[str, Any] = source
    return found


def test_prometheus_asks_the_ports_at_which_the_containers_answer() -> None:
    services = config(BASIS, OVERLAY)["services"]
    jobs = {
        job["job_name"]: job for job in yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    }
    (target,) = jobs["fenchel-server"]["static_configs"][0]["targets"]
    assert target == "server:9464"
    assert "--metrics=0.0.0.0:9464" in services["server"]["command"]
    (found,) = jobs["fenchel-client"]["dns_sd_configs"]
    assert (found["names"], found["port"]) == (["client"], 9464)
    assert "--metrics 0.0.0.0:9464" in services["client"]["command"]
    assert sources()["url"] == "http://prometheus:9090"


def test_the_overlay_only_adds_to_the_words_of_both_roles() -> None:
    with_it, plain = (config(*files)["services"] for files in ((BASIS, OVERLAY), (BASIS,)))
    mine, theirs = (shlex.split(services["server"]["command"]) for services in (with_it, plain))
    added = [word for word in mine if word not in theirs]
    assert added == ["--metrics=0.0.0.0:9464", "--dashboard-at=0.0.0.0:7444"]
    assert [word for word in mine if word not in added] == theirs
    mine, theirs = (shlex.split(services["client"]["command"]) for services in (with_it, plain))
    assert [word for word in mine if word not in ("--metrics", "0.0.0.0:9464")] == theirs
    for service in (with_it["certs"], plain["certs"]):
        service["volumes"].sort()  # compose keeps no order
    assert with_it["certs"] == plain["certs"]


def test_only_this_machine_reaches_what_the_overlay_opens() -> None:
    for name, service in config(BASIS, OVERLAY)["services"].items():
        for port in service.get("ports", []):
            published = port if isinstance(port, str) else f"{port.get('host_ip', '')}:{port['published']}"
            assert published.startswith("127.0.0.1:"), name


def test_every_file_that_the_overlay_mounts_is_there() -> None:
    services = config(BASIS, OVERLAY)["services"]
    mounted = [
        volume.split(":")[0] if isinstance(volume, str) else volume["source"]
        for name in ("prometheus", "grafana")
        for volume in services[name]["volumes"]
    ]
    files = [Path(source) for source in mounted if "/" in source]
    assert len(files) == 5
    assert all(path.is_file() for path in files)


def test_the_words_of_the_overlay_are_those_of_the_commands() -> None:
    commands: Any = typer.main.get_command(application())
    words = shlex.split(config(BASIS, OVERLAY)["services"]["server"]["command"])
    assert words[:2] == ["server", "/runs"]
    always, beginning = words[2 : words.index("--")], words[words.index("--") + 1 :]
    context = commands.commands["server"].make_context("server", [*beginning, *always])
    assert context.params["metrics"] == "0.0.0.0:9464"
    assert context.params["dashboard_at"] == "0.0.0.0:7444"
    client = shlex.split(config(BASIS, OVERLAY)["services"]["client"]["command"])
    context = commands.commands["client"].make_context("client", client[1:])
    assert context.params["metrics"] == "0.0.0.0:9464"


def test_the_page_of_the_documentation_lists_every_metric(names: set[str]) -> None:
    listed = set(re.findall(r"`(fenchel_\w+)", PAGE.read_text()))
    short = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
    assert listed == short
