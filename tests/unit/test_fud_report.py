"""FUD's part of the report, from synthetic results; nothing here was measured."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from PIL import Image
from tests.unit.test_reporting import HOSTILE, Page, change, load, write_all

from faithline import fud_films
from faithline.artifacts import write_json, write_table
from faithline.errors import ArtifactError
from faithline.reporting import fud_findings, fud_results, fud_section, results, site
from faithline.reporting.fud_results import FILMS, QUALITY, FudResults

LEVELS = [0.75, 0.5, 0.25]
METHODS = {"deepfaith": 0.6, "lime": 0.55, HOSTILE: 0.5}
CONTROLS = {"random": 0.4, "edge": 0.45}
IMAGE, TABLE = "toy_image", "toy_table"


def span(mean: float | None, half: float = 0.01) -> dict[str, float | None]:
    """A mean with an interval of 2 * half around it."""
    return {"mean": mean, "low": None if mean is None else mean - half, "high": None if mean is None else mean + half}


def method(role: str, score: float) -> dict[str, Any]:
    """A row of `methods`."""
    real = role != "control"
    return {
        "role": role,
        "score": span(score),
        "tau": span(0.9),
        "rises": span(0.1),
        "mean_rank": span(2.0),
        "log_odds": span(0.3),
        "second_score": span(0.45),
        "matched_random": span(0.42) if real else None,
        "above_matched_random": span(score - 0.42) if real else None,
        "calibrated": {"mean": None, "low": None, "high": None} if real else None,
        "above_random": span(score - 0.4),
        "curve": [span(score + 0.1), span(score), span(score - 0.1)],
        "matched_curve": [span(0.5), span(0.4), span(0.3)],
        "second_curve": [span(0.5), span(0.45), span(0.4)],
        "rivals": {
            "black_tau": span(0.5),
            "black_rises": span(0.3),
            "tau_above_black": span(0.4),
            "rises_above_black": span(-0.2),
        },
        "calls": 7,
    }


def evidence(auroc: float, quality: float) -> dict[str, Any]:
    """A row of `evidence`: `quality` above 0 is better than FUD in every metric."""
    numbers = {"auroc": auroc, "fpr95": 1 - auroc, "auroc_neighbours": 0.7}
    numbers |= {name: 0.5 + (quality if higher else -quality) for name, higher in QUALITY.items()}
    difference = {"auroc": span(auroc - 0.6), "fpr95": span(0.6 - auroc)}
    difference |= {name: span(quality if higher else -quality) for name, higher in QUALITY.items()}
    return {
        "images": 36,
        **numbers,
        "auroc_by_level": {"0.75": auroc, "0.5": auroc, "0.25": auroc},
        "intervals": {name: span(value) for name, value in numbers.items()},
        "minus_fud": difference,
    }


def document() -> dict[str, Any]:
    """`reports/fud/<task>.json` of an image task in which every statement of the paper holds."""
    methods = {name: method("explainer" if name == "deepfaith" else "supervision", score) for name, score in METHODS.items()}
    methods |= {name: method("control", score) for name, score in CONTROLS.items()}
    scores = METHODS | CONTROLS
    names = list(scores)
    pairs = [
        {
            "first": first,
            "second": second,
            "difference": span(scores[first] - scores[second]),
            "separated": True,
            "images_needed": 12,
        }
        for i, first in enumerate(names)
        for second in names[i + 1 :]
    ]
    half = dict.fromkeys(QUALITY, 0.5)
    steps = [
        {"remaining": k / 10, "auroc_sample": 0.5 + 0.05 * k, "low": 0.4, "high": 1.0, "auroc_aim": 0.9} for k in range(10, 0, -1)
    ]
    sampler = {
        "changes": {},
        "calls": 7,
        "gradients": 4,
        "dose": 0.08,
        "scores": {name: span(score) for name, score in scores.items()},
        "kendall_tau_with_main": 1.0,
        "contrast": span(0.2),
        "contrast_below_main": span(0.0, 0.0),
    }
    return {
        "task": IMAGE,
        "images": 4,
        "levels": LEVELS,
        "conventions": {"calls": 7, "gradients": 4, "draws": 1, "unit": HOSTILE},
        "target": {"accuracy": 0.9, "clean_confidence": 0.95},
        "empty_confidence": 0.1,
        "score_model": {
            "settings": {"kind": "trained"},
            "size": 16,
            "parameters": 1234,
            "frechet": {"samples": 2.5, "training_images": 0.5, "images": 4},
            "history": [{"step": k, "loss": 1 / (k + 1), "validation_loss": 1.1 / (k + 1)} for k in range(4)],
            "second_classifier": {"accuracy": 0.8},
        },
        "methods": methods,
        "pairs": pairs,
        "samplers": {
            "main": sampler,
            "unguided": {**sampler, "changes": {"scale": 0.0, "note": HOSTILE}, "contrast_below_main": span(0.1)},
        },
        "second": {
            "clean_confidence": span(0.8),
            "target_fall": span(0.5),
            "second_fall": span(0.4),
            "share": span(0.8),
        },
        "evidence": {
            "fud": {key: value for key, value in evidence(0.6, 0.0).items() if key != "minus_fud"},
            **{name: evidence(0.9, -0.2) for name in ("ins_del", "ins_del_blur", "sensitivity_n", "infid", "road")},
        },
        "settings_of_quality": {name: {"published": name != "fsim", "unavailable": ""} for name in QUALITY},
        "agreement": {
            "ins": {"kendall": 0.33, "spearman": 0.5, "methods": 3},
            "black_lerf": {"kendall": None, "spearman": None, "methods": 2},
        },
        "hard_vs_soft": {
            "method": "lime",
            "kept": 0.5,
            "hard": half,
            "soft": half,
            "hard_minus_soft": {name: span(0.1 if higher else -0.1) for name, higher in QUALITY.items()},
        },
        "chain": {"steps": steps, "fall": span(0.3), "half_way": span(0.05), "half_way_remaining": 0.05, "images": 4},
        "reference": {"kendall_tau": 0.9, "separated_pairs_agreement": 0.97, "call_ratio": 0.1},
    }


def table_document() -> dict[str, Any]:
    """`reports/fud/<task>.json` of a table task."""
    whole = document()
    keys = ("role", "score", "tau", "rises", "above_random", "curve")
    return {
        "task": TABLE,
        "kind": "table",
        "images": 24,
        "levels": LEVELS,
        "target": {"accuracy": 0.9, "clean_confidence": 0.9},
        "methods": {name: {key: row[key] for key in keys} for name, row in whole["methods"].items()},
        "pairs": whole["pairs"],
        "conventions": {"draws": 4},
    }


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (16, 16), value).save(buffer, "PNG")
    return buffer.getvalue()


def films() -> pl.DataFrame:
    """Two filmed images of two candidates, and both sheets."""
    rows: list[tuple[Any, ...]] = []
    for sample in (40, 41):
        rows.append(("image", sample, "", 1.0, 0.95, png(200)))
        for name in (HOSTILE, "random"):
            for kind in ("fud", "black"):
                rows += [(kind, sample, name, level, 0.5 + level / 10, png(int(255 * level))) for level in LEVELS]
    rows += [("sheet", None, None, None, None, png(9)), ("training", None, None, None, None, png(99))]
    return pl.DataFrame(rows, schema=FILMS, orient="row")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with two judged tasks and a written report; tests read it and do not change it."""
    root = tmp_path_factory.mktemp("fud_report")
    write_all(root)
    raw = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    raw["fud"]["image"]["tasks"], raw["fud"]["table"]["tasks"] = [IMAGE], [TABLE]
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    write_json(root / f"reports/fud/{IMAGE}.json", document())
    write_json(root / f"reports/fud/{TABLE}.json", table_document())
    write_table(root / f"reports/fud/{IMAGE}.parquet", films())
    site.write(load(root), root)
    return root


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.fixture(scope="module")
def page(made: Path) -> Page:
    """The parsed page."""
    return Page((made / "reports/index.html").read_text(encoding="utf-8"))


def parsed(edit: Callable[[dict[str, Any]], object] | None = None) -> FudResults:
    """Results of an image task, edited."""
    value = document()
    if edit is not None:
        edit(value)
    return FudResults.model_validate(value)


# ------------------------------------------------------------------------------------------------------------------- page


def test_each_judged_task_has_a_section_that_the_contents_name(page: Page) -> None:
    ids = {attrs.get("id") for tag, attrs in page.tags if tag == "section"}
    links = {attrs.get("href") for tag, attrs in page.tags if tag == "a"}
    for task in (IMAGE, TABLE):
        assert f"fud-{task}" in ids
        assert f"#fud-{task}" in links
    for heading in ("Is it in-distribution?", "Score model", "Agreement with other metrics", "Other samplers", "Cost"):
        assert page.text.count(heading) == 1, f"{heading}: of images only"


def test_a_hostile_name_is_text(made: Path, page: Page) -> None:
    assert not [tag for tag, attrs in page.tags if tag == "script" or "onerror" in attrs]
    assert all((attrs.get("src") or "").startswith("data:image/png;base64,") for tag, attrs in page.tags if tag == "img")
    assert "Of 3 methods deepfaith has the highest mean confidence" in page.text
    readme = (made / "reports/README.md").read_text(encoding="utf-8")
    assert f"## {IMAGE}, in distribution (FUD)" in readme
    assert "<script" not in readme


def test_no_output_holds_nan_or_none(made: Path, page: Page) -> None:
    for name in ("README.md", "findings.json"):
        text = (made / "reports" / name).read_text(encoding="utf-8")
        assert not {"nan", "NaN", "None", "inf,"} & set(text.replace("(", " ").replace(")", " ").split()), name
    start = page.text.index("In distribution: toy_image")
    assert not {"nan", "NaN", "None"} & set(page.text[start:].replace("(", " ").replace(")", " ").split())


def test_films_show_regenerated_beside_black_with_the_confidence(page: Page) -> None:
    shown = [attrs["alt"] or "" for tag, attrs in page.tags if tag == "img" and "sample 40" in (attrs.get("alt") or "")]
    assert len(shown) == 2 * 2 * (1 + len(LEVELS))
    assert "random, 25% kept, the rest regenerated, sample 40" in shown
    assert "random, 25% kept, the rest black, sample 40" in shown
    assert "0.57" in page.text  # at 0.75


def test_a_task_that_may_not_be_shown_says_so(copy: Path) -> None:
    write_table(copy / f"reports/fud/{IMAGE}.parquet", films().clear())
    site.write(load(copy), copy)
    text = (copy / "reports/index.html").read_text(encoding="utf-8")
    assert "Samples of this data set are not shown." in text
    assert "the rest regenerated" not in text


def test_settings_that_are_not_published_are_marked(page: Page) -> None:
    assert "FSIM*" in page.text
    assert "SSIM*" not in page.text.replace("FSIM*", "").replace("MS-SSIM*", "")
    assert not fud_section.section(
        fud_results.FudTask(IMAGE, parsed(lambda value: value["settings_of_quality"]["fsim"].update(published=True)), films()), {}
    ).own_settings


def test_a_run_that_judges_nothing_needs_no_file_of_fud(copy: Path) -> None:
    raw = yaml.safe_load((copy / "params.yaml").read_text(encoding="utf-8"))
    raw["fud"]["image"]["tasks"], raw["fud"]["table"]["tasks"] = [], []
    (copy / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    shutil.rmtree(copy / "reports/fud")
    site.write(load(copy), copy)
    assert "In distribution:" not in (copy / "reports/index.html").read_text(encoding="utf-8")
    found = json.loads((copy / "reports/findings.json").read_text(encoding="utf-8"))
    assert not [finding for finding in found if "FUD" in finding["source"]]


def test_same_inputs_give_same_bytes(made: Path, copy: Path) -> None:
    site.write(load(copy), copy)
    for name in ("index.html", "README.md", "findings.json"):
        assert (made / "reports" / name).read_bytes() == (copy / "reports" / name).read_bytes()


def test_the_report_reads_the_columns_that_scoring_writes() -> None:
    assert FILMS == fud_films.SCHEMA


# ----------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("name", [f"{IMAGE}.json", f"{IMAGE}.parquet", f"{TABLE}.json"])
def test_a_missing_or_truncated_file_is_named(copy: Path, name: str) -> None:
    path = copy / "reports/fud" / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match=name):
        site.write(load(copy), copy)
    path.unlink()
    with pytest.raises(ArtifactError, match=rf"{name} is missing"):
        site.write(load(copy), copy)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda value: value["methods"]["lime"].pop("score"), "not a result of `fud_score`.*methods.lime.score"),
        (lambda value: value["evidence"]["fud"].update(auroc=float("nan")), "not a result of `fud_score`.*auroc"),
        (lambda value: value.pop("pairs"), "not a result of `fud_score`.*pairs"),
    ],
)
def test_a_broken_result_is_refused(copy: Path, edit: Callable[[dict], object], message: str) -> None:
    change(copy / f"reports/fud/{IMAGE}.json", edit)
    with pytest.raises(ArtifactError, match=message):
        site.write(load(copy), copy)


def test_results_of_a_dropped_task_stop_the_report(copy: Path) -> None:
    write_json(copy / "reports/fud/old.json", document())
    with pytest.raises(ArtifactError, match=r"no longer names what made reports/fud/old.json"):
        results.refuse_leftovers(load(copy), copy)


# ----------------------------------------------------------------------------------------------------------------- claims


@pytest.mark.parametrize(
    ("low", "high", "phrase"),
    [
        (0.1, 0.2, "deepfaith keeps more of the class than a random order (+0.150 [+0.100, +0.200])"),
        (-0.2, -0.1, "deepfaith keeps less of the class than a random order"),
        (-0.1, 0.2, "deepfaith cannot be told from a random order"),
        (0.0, 0.2, "deepfaith cannot be told from a random order"),
    ],
)
def test_the_answer_against_chance_follows_the_interval(low: float, high: float, phrase: str) -> None:
    above = {"mean": (low + high) / 2, "low": low, "high": high}
    sentence = fud_section.answer(parsed(lambda value: value["methods"]["deepfaith"].update(above_random=above)))[1]
    assert sentence.startswith(phrase)
    assert "3 of 3 methods stand above random orders as smooth as their own." in sentence


def test_the_best_is_called_above_the_others_only_where_every_pair_is_apart() -> None:
    assert fud_section.answer(parsed())[0].endswith("and it is above every other method.")

    def close(value: dict[str, Any]) -> None:
        value["pairs"][0]["difference"] = {"mean": 0.05, "low": -0.01, "high": 0.1}

    assert fud_section.answer(parsed(close))[0].endswith("but it cannot be told from lime on 4 images.")


@pytest.mark.parametrize(
    ("low", "high", "start"),
    [
        (0.55, 0.65, "The removals are not fully in-distribution"),
        (0.45, 0.65, "An energy detector cannot tell the removals from clean pictures"),
        (0.35, 0.45, "An energy detector takes the removals for more typical"),
    ],
)
def test_in_distribution_is_said_only_where_the_interval_says_so(low: float, high: float, start: str) -> None:
    def edit(value: dict[str, Any]) -> None:
        value["evidence"]["fud"]["intervals"]["auroc"] = {"mean": (low + high) / 2, "low": low, "high": high}
        value["evidence"]["infid"]["minus_fud"]["auroc"] = {"mean": 0.1, "low": -0.1, "high": 0.3}

    sentence = fud_section.answer(parsed(edit))[2]
    assert sentence.startswith(start)
    rest = "those of INS/DEL (black), INS/DEL (blur), Sensitivity-N and ROAD, not separable from those of INFID."
    assert sentence.endswith(f"harder to detect than {rest}")


def test_pairs_are_read_either_way_round() -> None:
    pair = parsed().pair("random", "deepfaith")
    assert pair is not None
    found = pair.difference
    assert (found.mean, found.low, found.high) == pytest.approx((-0.2, -0.21, -0.19))


BELOW, ABOVE, AROUND = span(-0.3), span(0.3), span(0.01, 0.3)


def at(*keys: str) -> Callable[[dict[str, Any], object], None]:
    """Set what lies under keys of a document."""

    def put(value: dict[str, Any], new: object) -> None:
        for key in keys[:-1]:
            value = value[key]
        value[keys[-1]] = new

    return put


@pytest.mark.parametrize(
    ("words", "put", "refuting"),
    [
        ("lowest energy AUROC", at("evidence", "infid", "minus_fud", "auroc"), BELOW),
        ("highest FPR95", at("evidence", "infid", "minus_fud", "fpr95"), ABOVE),
        ("best quality", at("evidence", "ins_del", "minus_fud", "gmsd"), BELOW),
        ("more smoothly", at("methods", "lime", "rivals", "tau_above_black"), BELOW),
        ("rises after fewer removals", at("methods", "lime", "rivals", "rises_above_black"), ABOVE),
        ("Hard masks", at("hard_vs_soft", "hard_minus_soft", "gmsd"), ABOVE),
        ("about 5 %", at("chain", "half_way"), ABOVE),
        ("as smooth as itself", at("methods", "lime", "above_matched_random"), BELOW),
        ("needed for contrast", at("samplers", "unguided", "contrast_below_main"), BELOW),
        ("not only hidden", at("second", "share"), ABOVE),
    ],
)
def test_a_statement_follows_its_intervals(
    words: str, put: Callable[[dict[str, Any], object], None], refuting: dict[str, float]
) -> None:
    def verdict(edit: Callable[[dict[str, Any]], object] | None) -> str:
        found = [entry for entry in fud_findings._IMAGES if words in entry[0]]
        assert len(found) == 1
        return fud_findings._finding({IMAGE: parsed(edit)}, *found[0]).verdict

    assert verdict(None) == "confirmed"
    assert verdict(lambda value: put(value, refuting)) == "refuted"
    assert verdict(lambda value: put(value, span(0.3, 0.4))) == "untestable", "undecided: the evidence says so"


@pytest.mark.parametrize(("above", "expected"), [(span(-0.1), "confirmed"), (span(0.1), "refuted"), (span(0.0), "undecided")])
def test_a_random_order_is_high_where_it_beats_a_method(above: dict[str, float], expected: str) -> None:
    verdict, text = fud_findings._random_is_high(parsed(lambda value: value["methods"]["lime"].update(above_random=above)))
    assert verdict == expected
    assert text.startswith("random 0.400; method minus random deepfaith +0.200")


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0.45, 0.55, "confirmed"), (0.55, 0.65, "refuted"), (0.3, 0.7, "undecided")]
)
def test_in_distribution_needs_a_narrow_interval_around_chance(low: float, high: float, expected: str) -> None:
    def edit(value: dict[str, Any]) -> None:
        value["evidence"]["fud"]["intervals"]["auroc"] = {"mean": (low + high) / 2, "low": low, "high": high}

    assert fud_findings._chance(parsed(edit))[0] == expected


@pytest.mark.parametrize(("agreement", "expected"), [(0.95, "confirmed"), (0.94, "refuted"), (None, "untestable")])
def test_the_reference_is_agreed_with_or_not(agreement: float | None, expected: str) -> None:
    edit = at("reference", "separated_pairs_agreement")
    assert fud_findings._reference(parsed(lambda value: edit(value, agreement)))[0] == expected


def test_a_chain_that_does_not_fall_enters_nowhere() -> None:
    assert fud_findings._five_per_cent(parsed(lambda value: value["chain"].update(fall=AROUND)))[0] == "untestable"


def test_what_was_not_measured_is_untestable(made: Path) -> None:
    def strip(value: dict[str, Any]) -> None:
        for key in ("second", "chain", "hard_vs_soft", "reference"):
            value[key] = None
        value["evidence"], value["samplers"] = {}, {}
        for row in value["methods"].values():
            row["rivals"], row["above_matched_random"] = {}, None

    bare = parsed(strip)
    assert {entry[2](bare)[0] for entry in fud_findings._IMAGES} == {"untestable"}
    section = fud_section.section(fud_results.FudTask(IMAGE, bare, films()), {})
    assert section.evidence == ()
    assert section.answer[0].startswith("Of 3 methods")


def test_findings_of_tables_are_those_that_tables_can_test(made: Path) -> None:
    found = json.loads((made / "reports/findings.json").read_text(encoding="utf-8"))
    mine = {finding["claim"]: finding for finding in found}
    random = next(finding for claim, finding in mine.items() if "random order scores higher" in claim)
    assert f"{TABLE}: " in random["evidence"]
    assert f"{IMAGE}: " in random["evidence"]
    auroc = next(finding for claim, finding in mine.items() if "lowest energy AUROC" in claim)
    assert TABLE not in auroc["evidence"]
    assert auroc["verdict"] == "confirmed"
    published = next(finding for claim, finding in mine.items() if "published figures" in claim)
    assert published["verdict"] == "untestable"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["confirmed", "confirmed"], "confirmed"),
        (["confirmed", "untestable"], "undecided"),
        (["confirmed", "refuted", "undecided"], "refuted"),
        (["untestable"], "untestable"),
        ([], "untestable"),
    ],
)
def test_one_task_refutes_and_all_confirm(verdicts: list[Any], expected: str) -> None:
    assert fud_findings.overall(verdicts) == expected
