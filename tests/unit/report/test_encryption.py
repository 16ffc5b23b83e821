"""Encryption is accounted for, from the client's clock to the reader's page; runs without it show no sign of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.report import summary
from fenchel.report.render import terminal
from fenchel.report.render.page import write_report
from fenchel.report.run import Run
from tests.unit.report.conftest import shown

CIPHERTEXTS = ("encrypt_s", "decrypt_s", "encryptions", "decryptions")


def chart(run: Run, folder: Path) -> Any:
    page = write_report([run], folder / "page.html").read_text()
    data = page.partition('id="data">')[2].partition("</script>")[0]
    return json.loads(data)["runs"][0]["time"]["parts"]


def test_every_phase_says_how_many_ciphertexts_it_made_and_opened(encrypted: Run) -> None:
    calls = encrypted.calls
    counts = calls.groupby("phase")[["encryptions", "decryptions"]].sum()
    assert counts.loc["inner_product", "encryptions"] > 0
    assert counts.loc["inner_product", "decryptions"] == 0  # the model comes in the clear
    assert counts.loc["take_norms", "encryptions"] == 0
    assert counts.loc["take_norms", "decryptions"] > 0
    assert (counts.loc["step"] == 0).all()
    for seconds, ciphertexts in (("encrypt_s", "encryptions"), ("decrypt_s", "decryptions")):
        assert ((calls[seconds] > 0) == (calls[ciphertexts] > 0)).all()


def test_encryption_is_no_computation_and_the_parts_add_up_to_the_round(encrypted: Run) -> None:
    metrics, calls = encrypted.metrics, encrypted.calls
    assert (metrics["encryption_s"] > 0).all()
    parts = ["compute_s", "encryption_s", "coding_s", "network_s", "queueing_s", "away_s", "waiting_s", "server_s"]
    parts += ["unaccounted_s"]
    np.testing.assert_allclose(metrics[parts].sum(axis=1), metrics["seconds"], rtol=1e-9)
    client = ["client_decode_s", "compute_s", "encrypt_s", "decrypt_s", "journal_s", "client_encode_s"]
    answered = calls[np.isfinite(calls["total_s"])]
    assert (answered[client].sum(axis=1) <= answered["total_s"]).all()


def test_setup_and_end_are_in_the_calls_but_in_no_round(encrypted: Run) -> None:
    calls, metrics = encrypted.calls, encrypted.metrics
    assert set(calls[calls["round"] == 0]["phase"]) == {"introduce", "align", "take_norms"}
    assert {"figures", "inner_product"} <= set(calls[calls["round"] == 4]["phase"])
    own = calls[calls["kind"] != "inspect"]
    for row in metrics.itertuples():
        mine = own[own["round"] == row.round]
        assert row.asked == (mine["kind"] == "ask").sum()
        assert row.bytes_up == mine["bytes_up"].sum()


def test_the_summary_has_the_figures_of_the_final_model(encrypted: Run) -> None:
    assert encrypted.summary is not None
    figures = encrypted.summary["figures"]
    before, last = encrypted.metrics["gap"].iloc[-2:]
    assert figures["primal_objective"] == pytest.approx(figures["objective"], abs=1e-9)
    assert 0 < last < before
    assert last == figures["gap"]
    assert encrypted.figures["gap"] == figures["gap"]


def test_a_model_that_is_hidden_until_the_end_is_evaluated_then(run_encrypted: Callable[..., Run]) -> None:
    run = run_encrypted(protect_primal=True)
    *rounds, last = run.metrics["objective"]
    assert np.isnan(rounds).all()
    assert run.summary is not None
    figures = run.summary["figures"]
    assert last == figures["objective"]
    assert figures["objective"] == pytest.approx(figures["primal_objective"], abs=1e-6)
    assert figures["test_accuracy"] > 0.5
    assert "objective" in shown(run)


def test_the_reader_sees_the_share_of_encryption(encrypted: Run, tmp_path: Path) -> None:
    split = summary.time_split(encrypted.metrics_table)
    assert f"encryption {split['encryption'] / sum(split.values()):.0%}" in shown(encrypted)
    assert "encrypt" in shown(encrypted).partition("propose")[0]
    parts = chart(encrypted, tmp_path)
    assert list(parts) == [part for part in summary.SHARES if part != "away"]  # nobody was
    assert sum(parts["encryption"]) == pytest.approx(split["encryption"], rel=1e-4)
    described = terminal.as_json([encrypted])["runs"][0]
    assert described["seconds"]["encryption"] == split["encryption"]


def test_a_run_without_encryption_shows_no_sign_of_it(finished: Run, tmp_path: Path) -> None:
    assert "encrypt" not in shown(finished)
    assert "encrypt" not in shown(finished, finished)
    assert set(chart(finished, tmp_path)) == set(summary.SHARES) - {"encryption", "away"}


def test_tables_from_before_encryption_was_measured_can_be_read(
    altered: Callable[..., Run], finished: Run, tmp_path: Path
) -> None:
    metrics = finished.metrics_table.drop_columns(["encryption_s"])
    calls = finished.calls_table.drop_columns(list(CIPHERTEXTS))
    old = altered(metrics=metrics, calls=calls)
    assert summary.time_split(old.metrics_table) == summary.time_split(finished.metrics_table)
    assert shown(old).splitlines()[1:] == shown(finished).splitlines()[1:]
    assert chart(old, tmp_path) == chart(finished, tmp_path)
