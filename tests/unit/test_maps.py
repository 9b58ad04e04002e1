"""Stored maps come back as they were, and what params.yaml does not name is refused."""

import pyarrow as pa
import pytest
import torch

from faithline.artifacts import maps_column, write_table
from faithline.errors import ArtifactError
from faithline.maps import read_maps, refuse_strangers
from faithline.masking import column_features, patch_features


def store(folder, maps: torch.Tensor, sha: str = "abc") -> None:
    count = len(maps)
    table = pa.table(
        {
            "sample_id": pa.array(range(10, 10 + count), pa.int64()),
            "split": pa.array(["test"] * count, pa.string()),
            "attribution": maps_column(maps),
            "finite": pa.array([True] * count, pa.bool_()),
            "passes": pa.array([3.0] * count, pa.float32()),
        }
    )
    write_table(folder / "part-00000.parquet", table, {"target_sha256": sha})


def test_pixel_maps_come_back_and_sum_within_features(tmp_path):
    features, maps = patch_features(4, 2, channels=1), torch.randn(3, 4, 4)
    store(tmp_path, maps)
    stored = read_maps(tmp_path, features, "abc")
    assert torch.equal(stored.maps, maps)
    torch.testing.assert_close(stored.attribution[:, 0], maps[:, :2, :2].sum((1, 2)))
    assert stored.passes == 3.0
    assert torch.equal(stored.of(torch.tensor([12, 10])).maps, maps[[2, 0]])


def test_a_sample_without_a_map_is_named(tmp_path):
    store(tmp_path, torch.randn(2, 3))
    with pytest.raises(ArtifactError, match=r"no map of samples \[99\]"):
        read_maps(tmp_path, column_features(3), "abc").of(torch.tensor([10, 99]))


def test_maps_of_another_model_or_shape_are_refused(tmp_path):
    store(tmp_path, torch.randn(2, 3), sha="other")
    with pytest.raises(ArtifactError, match="explains another model"):
        read_maps(tmp_path, column_features(3), "abc")
    with pytest.raises(ArtifactError, match=r"maps have shape \(3,\), the task's have \(4,\)"):
        read_maps(tmp_path, column_features(4), "other")


def test_strangers_in_a_folder_stop_the_run_and_are_named_with_the_command(tmp_path):
    for name in ("lime", "saliency"):
        (tmp_path / name).mkdir()
    refuse_strangers(tmp_path, ["lime", "saliency"])
    with pytest.raises(ArtifactError, match=r"rm -r .*saliency"):
        refuse_strangers(tmp_path, ["lime"])
    with pytest.raises(ArtifactError, match=r"lacks \['occlusion'\]"):
        refuse_strangers(tmp_path, ["lime", "saliency", "occlusion"])
