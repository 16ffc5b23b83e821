"""The table of a partition counts what clients hold, and is drawn as a PNG of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from fenchel.common.data.source import DataSource
from fenchel.common.data.table import partition_table
from fenchel.common.settings.data import DataSettings
from fenchel.report.render.partition import draw
from tests.slow import rest_slow


def source(**partition: Any) -> DataSource:
    return DataSource.open(DataSettings.model_validate({"name": "digits", "partition": partition}), 0)


def test_the_table_counts_the_classes_of_every_shard() -> None:
    data = source(kind="dirichlet", alpha=0.3)
    table = partition_table(data, 6)
    for client in range(6):
        expected = np.bincount(data.shard(client, 6).labels, minlength=10)
        np.testing.assert_array_equal(table.counts[:, client], expected)
    assert table.features.tolist() == [64] * 6


def test_the_table_of_a_grid_says_how_many_features_each_client_holds() -> None:
    table = partition_table(source(kind="grid", sample_groups=2, feature_groups=3), 6)
    assert table.features.tolist() == [22, 22, 21, 21, 21, 21]


@pytest.mark.parametrize("clients", rest_slow([1, 4, 20, 100], 2))
def test_a_table_is_drawn_with_the_bars_and_the_map_in_it(tmp_path: Path, clients: int) -> None:
    path = tmp_path / "new" / "table.png"
    draw(partition_table(source(kind="label-shards"), clients), path)
    picture = matplotlib.image.imread(path)
    assert picture.shape[1] > picture.shape[0] / 2
    blue = (picture[:, :, 2] > picture[:, :, 0] + 0.2).mean()
    assert 0.05 < blue < 0.9
