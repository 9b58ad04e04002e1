"""Frozen samples: what is refused, how splits are drawn, and that writing and reading changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from faithline import dataset
from faithline.bank import samples_of
from faithline.dataset import SPLITS, Samples, assign_official, assign_splits, check, freeze, read
from faithline.errors import ArtifactError
from faithline.masking import column_features, patch_features, token_features


def table(rows: int = 30) -> Samples:
    split = np.array(["train", "validation", "test"])[np.arange(rows) % 3]
    return Samples(
        x=torch.randn(rows, 4, generator=torch.Generator().manual_seed(0)),
        label=torch.arange(rows) // 3 % 2,
        split=split,
        supervised=(split == "train") & (np.arange(rows) % 2 == 0),
        features=column_features(4),
        class_names=("no", "yes"),
        feature_names=("a", "b", "c", "d"),
        preprocessing={"mean": [0.0] * 4, "std": [1.0] * 4},
        source="made up",
    )


def text() -> Samples:
    ids = torch.ones(30, 5, dtype=torch.int64)
    ids[:, 3:] = 0
    return replace(
        table(), x=ids, features=token_features(5, 0), feature_names=(), preprocessing={"vocabulary": ["<pad>", "<unk>"]}
    )


def changed(samples: Samples, row: int, column: int, value: float) -> Samples:
    x = samples.x.clone()
    x[row, column] = value
    return replace(samples, x=x)


def relabelled(samples: Samples, split: str, label: int) -> Samples:
    labels = samples.label.clone()
    labels[samples.index(split)] = label
    return replace(samples, label=labels)


def constant(samples: Samples) -> Samples:
    x = samples.x.clone()
    x[samples.index("train"), 2] = 1.5  # constant over the training split only: the other rows still vary
    return replace(samples, x=x)


def empty_text() -> Samples:
    samples = text()
    samples.x[7] = 0
    return samples


def resplit(samples: Samples, old: str, new: str) -> Samples:
    split = np.where(samples.split == old, new, samples.split)
    return replace(samples, split=split, supervised=np.zeros(len(split), dtype=bool))


REFUSED = {
    "shape": (replace(table(), features=column_features(5)), r"shape \(4,\), the features say \(5,\)"),
    "length": (replace(table(), label=torch.zeros(29, dtype=torch.int64)), "differ in length"),
    "nan": (changed(table(), 3, 1, float("nan")), r"1 inputs hold NaN or infinity \(first rows: \[3\]\)"),
    "infinity": (changed(table(), 5, 0, float("-inf")), r"first rows: \[5\]"),
    "constant column": (constant(table()), r"columns \['c'\] are constant over the training split"),
    "empty text": (empty_text(), r"1 texts have no token \(first rows: \[7\]\)"),
    "label too large": (replace(table(), class_names=("no",)), r"labels lie in \[0, 1\], but there are 1 classes"),
    "negative label": (relabelled(table(), "train", -1), r"labels lie in \[-1, 1\]"),
    "no train": (resplit(table(), "train", "test"), "split train is empty"),
    "no validation": (resplit(table(), "validation", "test"), "split validation is empty"),
    "no test": (resplit(table(), "test", "train"), "split test is empty"),
    "class without train": (relabelled(table(), "train", 1), r"classes \['no'\] have no train sample"),
    "class without test": (relabelled(table(), "test", 0), r"classes \['yes'\] have no test sample"),
    "supervised test": (replace(table(), supervised=table().split == "test"), "only training samples may be supervised"),
}


@pytest.mark.parametrize(("samples", "message"), REFUSED.values(), ids=REFUSED)
def test_what_would_fail_later_is_refused_and_nothing_is_written(samples, message, tmp_path):
    with pytest.raises(ArtifactError, match=message):
        freeze(samples, tmp_path / "task")
    assert list(tmp_path.iterdir()) == []


def test_good_samples_pass_and_a_class_may_lack_validation_samples():
    for samples in (table(), text(), relabelled(table(), "validation", 0)):
        check(samples)


def test_index_and_explained_follow_the_splits():
    samples = table()
    assert samples.index("train").tolist() == list(range(0, 30, 3))
    assert samples.index("train", supervised=True).tolist() == [0, 6, 12, 18, 24]
    assert samples.explained().tolist() == sorted([*range(2, 30, 3), 0, 6, 12, 18, 24])
    assert samples.explained().dtype == torch.int64


# ---------------------------------------------------------------------------------------------------------------- splits


def draw(groups: np.ndarray, seed: int = 0, counts: tuple[int, int, int] = (60, 20, 30), supervised: int = 15):
    wanted = dict(zip(SPLITS, counts, strict=True))
    return assign_splits(groups, wanted, supervised, np.random.default_rng(seed))


def test_no_group_is_in_two_splits_and_counts_are_exact():
    groups = np.random.default_rng(1).integers(0, 40, 200)
    chosen, split, supervised = draw(groups)
    found = [set(groups[chosen][split == name]) for name in SPLITS]
    assert not found[0] & found[1]
    assert not found[0] & found[2]
    assert not found[1] & found[2]
    assert [(split == name).sum() for name in SPLITS] == [60, 20, 30]
    assert supervised.sum() == 15
    assert (split[supervised] == "train").all()
    assert (np.diff(chosen) > 0).all()


def test_the_same_seed_splits_alike_and_another_does_not():
    groups = np.arange(200)
    first, again, other = draw(groups), draw(groups), draw(groups, seed=1)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first[0], other[0])


def test_groups_may_be_words():
    groups = np.array([f"film {number}" for number in np.random.default_rng(1).integers(0, 40, 200)])
    chosen, split, _ = draw(groups)
    assert not set(groups[chosen][split == "train"]) & set(groups[chosen][split == "test"])


def test_too_few_samples_are_refused_with_what_there_is():
    with pytest.raises(ArtifactError, match=r"100 samples, too few for dataset train: 60 \(there are 50\)"):
        draw(np.arange(100))


# ------------------------------------------------------------------------------------------------------------- round trip


@pytest.mark.parametrize("samples", [table(), text()], ids=["table", "text"])
def test_what_is_read_is_what_was_frozen(samples, tmp_path):
    freeze(samples, tmp_path / "task")
    back = read(tmp_path / "task")
    assert torch.equal(back.x, samples.x)
    assert back.x.dtype == samples.x.dtype
    assert torch.equal(back.label, samples.label)
    np.testing.assert_array_equal(back.split, samples.split)
    np.testing.assert_array_equal(back.supervised, samples.supervised)
    for name in ("features", "class_names", "feature_names", "preprocessing", "source"):
        assert getattr(back, name) == getattr(samples, name)


def test_images_keep_their_grid(tmp_path):
    base = table()
    samples = replace(base, x=torch.rand(30, 3, 8, 8), features=patch_features(8, 4), feature_names=(), preprocessing={})
    freeze(samples, tmp_path / "task")
    assert read(tmp_path / "task").features == patch_features(8, 4)


def test_freezing_twice_gives_the_same_bytes(tmp_path):
    names = ["inputs.safetensors", "samples.parquet", "task.json"]
    for folder in ("first", "second"):
        freeze(table(), tmp_path / folder)
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == names
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_a_missing_or_truncated_file_is_named(tmp_path):
    with pytest.raises(ArtifactError, match=r"task\.json is missing"):
        read(tmp_path / "task")
    freeze(table(), tmp_path / "task")
    parquet = tmp_path / "task" / "samples.parquet"
    parquet.write_bytes(parquet.read_bytes()[:-20])
    with pytest.raises(ArtifactError, match=r"samples\.parquet cannot be read"):
        dataset.read(tmp_path / "task")


# -------------------------------------------------------------------------------------------- gallery, flags, official parts


def with_gallery(label: int = -1) -> Samples:
    """Thirty samples and two of the gallery."""
    plain = table()
    return replace(
        plain,
        x=torch.cat([plain.x, torch.ones(2, 4)]),
        label=torch.cat([plain.label, torch.tensor([label, 1])]),
        split=np.concatenate([plain.split, ["gallery", "gallery"]]),
        supervised=np.concatenate([plain.supervised, [False, False]]),
        showable=False,
    )


def test_gallery_samples_are_explained_and_never_scored():
    samples = with_gallery()
    check(samples)
    assert samples.index("gallery").tolist() == [30, 31]
    assert samples.explained().tolist() == [*table().explained().tolist(), 30, 31]
    assert samples.scored().tolist() == table().explained().tolist() == table().scored().tolist()
    assert samples.unseen().tolist() == [*table().index("test").tolist(), 30, 31]


def test_the_bank_has_masks_of_every_sample_that_a_method_explains():
    """Feature ablation reads single removals of the evaluation masks, of gallery samples too."""
    samples = with_gallery()
    for use in ("fitting", "evaluation"):
        assert samples_of(use, samples).tolist() == samples.explained().tolist()
    assert samples_of("reference", samples).tolist() == samples.unseen().tolist()


def test_only_a_gallery_sample_may_lack_a_class():
    check(with_gallery(-1))
    with pytest.raises(ArtifactError, match=r"labels lie in \[-2, 1\]"):
        check(with_gallery(-2))
    with pytest.raises(ArtifactError, match=r"labels lie in \[-1, 1\]"):
        check(relabelled(with_gallery(), "validation", -1))


def test_flags_are_kept_and_written_only_where_they_say_something(tmp_path):
    freeze(table(), tmp_path / "plain")
    assert not {"showable", "complete"} & set((tmp_path / "plain/task.json").read_text().replace('"', " ").split())
    assert read(tmp_path / "plain").showable
    assert read(tmp_path / "plain").complete
    flagged = replace(with_gallery(), complete=False)
    freeze(flagged, tmp_path / "flagged")
    again = read(tmp_path / "flagged")
    assert (again.showable, again.complete) == (False, False)
    assert again.index("gallery").tolist() == [30, 31]
    assert again.label.tolist() == flagged.label.tolist()


def test_a_model_may_know_more_classes_than_the_data_has():
    samples = replace(table(), class_names=("no", "yes", "maybe"))
    with pytest.raises(ArtifactError, match=r"classes \['maybe'\] have no train sample"):
        check(samples)
    check(replace(samples, complete=False))


def test_official_parts_are_kept_apart():
    official = np.array(["train"] * 40 + ["test"] * 20)
    groups = np.array([*np.repeat(np.arange(20), 2), *np.repeat([3, 100, 101, 102], 5)])  # 3 is in both parts
    counts = {"train": 24, "validation": 6, "test": 10}
    chosen, split, flags = assign_official(official, groups, counts, 8, np.random.default_rng(0))
    assert (np.diff(chosen) > 0).all()
    assert {name: int((split == name).sum()) for name in SPLITS} == counts
    assert (official[chosen[split == "test"]] == "test").all()
    assert (official[chosen[split != "test"]] == "train").all()
    found = {name: set(groups[chosen[split == name]]) for name in SPLITS}
    assert not found["train"] & found["validation"]
    assert 3 not in found["train"] | found["validation"]
    assert flags.sum() == 8
    assert (split[flags] == "train").all()
    with pytest.raises(ArtifactError, match="official test part has 20 samples, too few for dataset test: 21"):
        assign_official(official, groups, {**counts, "test": 21}, 8, np.random.default_rng(0))
    with pytest.raises(ArtifactError, match=r"train: 39 \(there are"):
        assign_official(official, groups, {**counts, "train": 39}, 8, np.random.default_rng(0))
