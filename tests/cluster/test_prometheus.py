"""A real Prometheus asks both roles, with the shipped configuration and queries, and finds all it looks for."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import paced
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import free_port, wait_until
from tests.cluster.test_monitoring import answers, endless, fetched, started

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,  # not every machine has Prometheus, and it takes its time
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed"),
]

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
NOTHING_HERE = {"Other figures", "Calls that did not count"}  # FedAvg has none, and every call counts
ALARMS = ("FenchelServerDown", "FenchelRunStalled", "FenchelClientsLost")
SECONDS = 1  # between two looks; the board looks back over four times as long


def configuration(server: int, client: int, path: Path) -> None:
    """Write the shipped configuration, with the addresses of this test in place of those of the containers."""
    shipped = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    shipped["global"] |= {"scrape_interval": f"{SECONDS}s", "evaluation_interval": f"{SECONDS}s"}
    shipped["rule_files"] = [str(MONITORING / name) for name in shipped["rule_files"]]
    ports = {"fenchel-server": server, "fenchel-client": client}
    for job in shipped["scrape_configs"]:
        job.pop("dns_sd_configs", None)
        job["static_configs"] = [{"targets": [f"127.0.0.1:{ports[job['job_name']]}"]}]
    path.write_text(yaml.safe_dump(shipped))


def queries() -> dict[str, str]:
    """Return every query of the board that this run has an answer to, by the title of its panel and its place there."""
    board = json.loads((MONITORING / "grafana" / "fenchel.json").read_text())
    return {
        f"{panel['title']}, {place}": target["expr"].replace("$__rate_interval", f"{4 * SECONDS}s")
        for panel in board["panels"]
        if panel["title"] not in NOTHING_HERE
        for place, target in enumerate(panel.get("targets", []))
    }


def asked(port: int, query: str) -> list[dict[str, Any]]:
    answer = json.loads(fetched(port, "/api/v1/query?" + urllib.parse.urlencode({"query": query})))
    assert answer["status"] == "success", answer
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def test_every_query_of_the_board_finds_something(federate: MakeFederation, tmp_path: Path) -> None:
    at_server, at_client, at_prometheus = free_port(), free_port(), free_port()
    federation = federate(endless(), paced.NAME)
    started(federation, ("--metrics", f"127.0.0.1:{at_server}"), ("--metrics", f"127.0.0.1:{at_client}"))
    wait_until(lambda: answers(at_server, "/metrics") and answers(at_client, "/metrics"), "both roles")
    configuration(at_server, at_client, tmp_path / "prometheus.yml")
    prometheus = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'series'}",
            f"--web.listen-address=127.0.0.1:{at_prometheus}",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: answers(at_prometheus, "/-/ready"), "Prometheus")
        empty = dict(queries())
        assert len(empty) >= 10

        def found() -> bool:
            for title, query in list(empty.items()):
                if asked(at_prometheus, query):
                    del empty[title]
            return not empty

        try:
            wait_until(found, "what the board shows", patience=60)
        finally:
            assert not empty, "nothing is found for: " + "; ".join(
                f"{title}: {query}" for title, query in empty.items()
            )
        targets = json.loads(fetched(at_prometheus, "/api/v1/targets"))["data"]["activeTargets"]
        assert {target["labels"]["job"]: target["health"] for target in targets} == {
            "fenchel-server": "up",
            "fenchel-client": "up",
        }
        done = float(asked(at_prometheus, "fenchel_rounds_total")[0]["value"][1])
        assert 0 < done < endless()["rounds"]

        def alarms() -> dict[str, str]:
            (rules,) = json.loads(fetched(at_prometheus, "/api/v1/rules"))["data"]["groups"]
            return {rule["name"]: rule["state"] for rule in rules["rules"]}

        wait_until(lambda: alarms() == dict.fromkeys(ALARMS, "inactive"), "alarms of a run that goes on")
        federation.kill("server")
        wait_until(lambda: alarms()["FenchelServerDown"] == "pending", "the alarm")
    finally:
        prometheus.terminate()
        prometheus.wait(30)
