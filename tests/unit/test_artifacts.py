"""Files that other stages trust."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from faithline import artifacts
from faithline.errors import ArtifactError


def test_publish_makes_the_folder_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with artifacts.publish(out) as folder:
        (folder / "a").write_text("1")
        assert not out.exists()
    assert [p.name for p in out.iterdir()] == ["a"]
    with pytest.raises(RuntimeError, match="half way"), artifacts.publish(out) as folder:  # noqa: PT012 (the block is the test)
        (folder / "b").write_text("2")
        raise RuntimeError("half way")
    assert [p.name for p in out.iterdir()] == ["a"], "the old content stays when the new one fails"
    assert [p.name for p in out.parent.iterdir()] == ["out"], "nothing half-written is left"


def test_publish_replaces_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("first", "second"):
        with artifacts.publish(out) as folder:
            (folder / name).touch()
    assert [p.name for p in out.iterdir()] == ["second"]


def test_publish_into_a_place_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"), artifacts.publish(tmp_path / "file" / "out"):
        pass
    assert (tmp_path / "file").read_text() == "in the way"


def test_json_is_quiet_in_a_diff(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    artifacts.write_json(path, {"b": 0.123456789, "a": [np.float32(0.5), np.int64(3), (1, None)], "c": "é"})
    assert (
        path.read_text()
        == '{\n  "a": [\n    0.5,\n    3,\n    [\n      1,\n      null\n    ]\n  ],\n  "b": 0.123457,\n  "c": "é"\n}\n'
    )
    assert artifacts.read_json(path)["b"] == 0.123457


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float32("nan")])
def test_json_refuses_what_is_not_json(tmp_path: Path, bad: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        artifacts.write_json(tmp_path / "a.json", {"x": bad})
    assert not list(tmp_path.iterdir())


def test_missing_and_damaged_json(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none.json is missing: run `dvc repro`"):
        artifacts.read_json(tmp_path / "none.json")
    (tmp_path / "half.json").write_text(json.dumps({"a": 1})[:-2])
    with pytest.raises(ArtifactError, match=r"half.json is not valid JSON"):
        artifacts.read_json(tmp_path / "half.json")


def test_equal_tables_give_equal_bytes(tmp_path: Path) -> None:
    table = pl.DataFrame({"sample_id": [1, 2, 3], "name": ["a", "b", "a"], "value": [0.5, None, 2.0]})
    for name in ("one", "two"):
        artifacts.write_table(tmp_path / name, table, {"task": "t", "a": "b"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert artifacts.read_metadata(tmp_path / "one") == {"a": "b", "task": "t"}
    assert artifacts.read_table(tmp_path / "one", {"sample_id": pl.Int64, "value": None}).equals(table)


def test_floats_are_not_dictionary_encoded(tmp_path: Path) -> None:
    artifacts.write_table(tmp_path / "a", pl.DataFrame({"value": [1.0, 1.0], "word": ["x", "x"]}))
    group = pq.ParquetFile(tmp_path / "a").metadata.row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(2)}
    assert not any("DICTIONARY" in e for e in encodings["value"])
    assert any("DICTIONARY" in e for e in encodings["word"])


def test_nan_does_not_get_into_a_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column value holds NaN"):
        artifacts.write_table(tmp_path / "a", pl.DataFrame({"value": [1.0, float("nan")]}))
    assert not list(tmp_path.iterdir())


def write_parts(folder: Path) -> None:
    for number in (1, 0):
        artifacts.write_table(folder / f"part-{number:05d}.parquet", pl.DataFrame({"sample_id": [number]}))


def test_parts_are_read_in_order(tmp_path: Path) -> None:
    write_parts(tmp_path)
    assert artifacts.read_table(tmp_path)["sample_id"].to_list() == [0, 1]


@pytest.mark.parametrize("cut", [0, 3, 60])
def test_truncated_parquet_is_named(tmp_path: Path, cut: int) -> None:
    write_parts(tmp_path)
    path = tmp_path / "part-00001.parquet"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ArtifactError, match=r"part-00001.parquet cannot be read as Parquet"):
        artifacts.read_table(tmp_path)


def test_schemaless_or_missing_parquet_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="missing: run `dvc repro`"):
        artifacts.read_table(tmp_path)
    with pytest.raises(ArtifactError, match="missing: run `dvc repro`"):
        artifacts.read_table(tmp_path / "none.parquet")
    with pytest.raises(ArtifactError, match="missing: run `dvc repro`"):
        artifacts.read_metadata(tmp_path / "none.parquet")
    write_parts(tmp_path)
    with pytest.raises(ArtifactError, match=r"has no column 'method' \(it has \['sample_id'\]\)"):
        artifacts.read_table(tmp_path, {"method": None})
    with pytest.raises(ArtifactError, match="column 'sample_id' is Int64, not String"):
        artifacts.read_table(tmp_path, {"sample_id": pl.String})


def test_maps_keep_their_shape_for_any_reader(tmp_path: Path) -> None:
    maps = torch.arange(24.0).reshape(2, 3, 4)
    artifacts.write_table(tmp_path / "a", pa.table({"attribution": artifacts.maps_column(maps)}))
    assert pl.read_parquet(tmp_path / "a")["attribution"].to_numpy().shape == (2, 3, 4)
    assert torch.equal(torch.tensor(pq.read_table(tmp_path / "a")["attribution"].to_pylist()), maps)


def test_tensors_give_equal_bytes_and_survive_sharing(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    for name in ("one", "two"):
        artifacts.write_tensors(tmp_path / name, {"b": base.T, "a": base}, {"k": "v"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert torch.equal(artifacts.read_tensors(tmp_path / "one")["b"], base.T)


def test_missing_and_truncated_tensors(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="missing"):
        artifacts.read_tensors(tmp_path / "none")
    artifacts.write_tensors(tmp_path / "a", {"w": torch.zeros(100)})
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:50])
    with pytest.raises(ArtifactError, match="not a whole safetensors file"):
        artifacts.read_tensors(tmp_path / "a")


def test_reading_a_pickle_as_tensors_runs_no_code(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1)}, tmp_path / "a")
    with pytest.raises(ArtifactError, match="not a whole safetensors file"):
        artifacts.read_tensors(tmp_path / "a")
