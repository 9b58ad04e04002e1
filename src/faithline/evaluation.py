"""Every candidate of a task on the test split: ten metrics, ranks, intervals, paired differences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from torch import Tensor

from faithline import workspace
from faithline.artifacts import maps_column, publish, read_json, read_table, write_json, write_table
from faithline.attributions.query import Query
from faithline.attributions.run import attribute_by_name
from faithline.bank import all_keep_sets
from faithline.config import ExplainerSettings, MethodSettings, Params, dotted
from faithline.controls import IMAGE_ONLY, control_map, scaled
from faithline.curating import CURVE_COLUMNS
from faithline.errors import ArtifactError
from faithline.explainers.load import Explainer, load_explainer
from faithline.judging import Judge
from faithline.maps import column_to_maps, refuse_strangers
from faithline.metrics import ranking
from faithline.metrics.curves import to_frame
from faithline.refinement import refine
from faithline.sweeping import open_judge, read_all_maps
from faithline.workspace import Workspace

EXACT_REFERENCES = ("exact_shapley", "exact_banzhaf")
"""Read off the 2^n table where a task has one."""

ORACLE = "oracle_prior"
"""Per sample, the scores of the supervising prior with the best mean rank there: what choosing well could reach."""


APART = ("refined", "reference")
"""Roles whose rows take the rank they would have but change no other's, and that are shown, not tested."""


@dataclass(frozen=True)
class Candidate:
    """One row of a leaderboard.

    Attributes:
        role: supervision, baseline, explainer, refined, control or reference.
        attribution: Maps of the test samples, (B, n); None for the oracle, which has only scores.
        scores: (B, M), NaN where undefined.
        passes: Model calls of one explanation; None where the notion has no meaning (the oracle).
    """

    role: str
    attribution: Tensor | None
    scores: Tensor
    passes: float | None


def evaluate(opened: Workspace) -> None:
    """Judge all candidates of a task and write `data/evaluation/<task>/`, `reports/evaluation/<task>.json` and the short
    `reports/metrics/<task>.json`.

    Raises:
        ArtifactError: If an input is missing, damaged, of another model, or not named in params.yaml.
    """
    task, params = opened.task, opened.params
    ids = opened.samples.index("test")
    judge = open_judge(opened, ids)
    metrics = [str(name) for name in params.evaluate.metrics]
    with publish(workspace.evaluation_folder(task)) as folder:
        candidates = _prior_methods(opened, judge, metrics)
        networks = _networks(opened)
        explained = _explainers(judge, networks)
        refined = _refinements(opened, judge, explained)
        fresh = {**explained, **refined, **_controls(opened, judge), **_exact_references(opened, judge)}
        for name, (role, maps, passes) in fresh.items():
            candidates[name] = _sweep_and_score(opened, judge, name, role, maps, passes, metrics, folder / "curves")
        shown = opened.samples.index("gallery")
        drawn = [(name, ids, item[1]) for name, item in fresh.items()]
        drawn += [(name, shown, network(opened.samples.x[shown])) for name, network in networks.items() if len(shown)]
        _write_maps(opened, drawn, folder / "maps.parquet")

        names = [*candidates, ORACLE]
        ranks, duplicate_of = rank_candidates(candidates, metrics)
        oracle = oracle_scores(candidates, ranks, metrics)
        candidates[ORACLE] = Candidate("reference", None, oracle, None)
        ranks, duplicate_of = rank_candidates(candidates, metrics)
        write_table(folder / "scores.parquet", score_frame(ids, candidates, metrics), opened.metadata())

    result = _summarise(opened, judge, candidates, names, ranks, duplicate_of, metrics)
    write_json(f"reports/evaluation/{task}.json", result)
    write_json(f"reports/metrics/{task}.json", _short(result))


# -------------------------------------------------------------------------------------------------------------- candidates


def _prior_methods(opened: Workspace, judge: Judge, metrics: list[str]) -> dict[str, Candidate]:
    roles = opened.params.modality(opened.task).methods.roles()
    everything = read_all_maps(opened)
    refuse_strangers(workspace.curves_folder(opened.task), list(everything), ".parquet")
    if (reference := opened.params.report.reference) not in everything:
        raise ArtifactError(f"report.reference = {reference!r} does not fit the target of {opened.task}: choose another method")
    candidates = {}
    for name, stored in everything.items():
        maps = stored.of(judge.sample_ids)
        frame = read_table(workspace.curves_folder(opened.task) / f"{name}.parquet", CURVE_COLUMNS)
        scores = judge.score_stored(maps.attribution, maps.finite, frame, metrics)
        attribution = torch.where(maps.finite[:, None], maps.attribution, torch.nan)
        candidates[name] = Candidate(roles[name], attribution, scores, stored.passes)
    return candidates


def _networks(opened: Workspace) -> dict[str, Explainer]:
    names = list(opened.params.modality(opened.task).explainers)
    refuse_strangers(workspace.explainer_folder(opened.task, ""), names)
    largest = opened.settings.game.max_batch
    folders = {name: workspace.explainer_folder(opened.task, name) for name in names}
    return {name: load_explainer(folder, opened.target.model, max_batch=largest) for name, folder in folders.items()}


def _explainers(judge: Judge, networks: dict[str, Explainer]) -> dict[str, tuple[str, Tensor, float]]:
    made = {}
    for name, explainer in networks.items():
        before = explainer.game.passes
        maps = explainer(judge.x)
        made[name] = ("explainer", maps, (explainer.game.passes - before) / len(maps))
    return made


def _refinements(
    opened: Workspace, judge: Judge, explained: dict[str, tuple[str, Tensor, float]]
) -> dict[str, tuple[str, Tensor, float]]:
    """Maps of explainers, refitted on masks of the test samples that no explainer saw; the masks are paid for."""
    made = {}
    for name, settings in opened.params.modality(opened.task).refinements.items():
        _, maps, passes = explained[settings.explainer]
        masks = opened.bank("fitting").masks(judge.sample_ids, "bernoulli").first(settings.masks)
        # v(all), of which the effects are falls, is the explainer's own clean pass if it makes one.
        cost = max(passes, 1.0) + settings.masks * opened.game.baseline.copies
        made[name] = ("refined", refine(maps, masks), cost)
    return made


def _controls(opened: Workspace, judge: Judge) -> dict[str, tuple[str, Tensor, float]]:
    features = opened.samples.features
    taught = read_table(workspace.curated_folder(opened.task) / "maps.parquet", {"attribution": None})
    maps = column_to_maps(taught["attribution"])
    mean_map = scaled(maps).mean(0) if len(maps) else torch.zeros(features.n)
    return {
        name: (
            "control",
            control_map(name, features, judge.x, judge.sample_ids, mean_map, opened.params.seed),
            0.0,
        )
        for name in opened.params.evaluate.controls
        if features.kind == "image" or name not in IMAGE_ONLY
    }


def _exact_references(opened: Workspace, judge: Judge) -> dict[str, tuple[str, Tensor, float]]:
    table = opened.bank("evaluation").table(judge.sample_ids)
    if table is None:
        return {}
    masks = opened.bank("evaluation").masks(judge.sample_ids, "all")
    settings = MethodSettings(role="reference")
    query = Query(opened.game, judge.x, judge.target, masks, None, judge.sample_ids)
    return {
        name: (
            "reference",
            attribute_by_name(name, query, settings),
            float(len(all_keep_sets(table.n))),
        )
        for name in EXACT_REFERENCES
        if name not in opened.params.modality(opened.task).methods.names()
    }


def _sweep_and_score(
    opened: Workspace, judge: Judge, name: str, role: str, maps: Tensor, passes: float, metrics: list[str], folder: Path
) -> Candidate:
    finite = torch.isfinite(maps).all(1)
    rows = finite.nonzero()[:, 0]
    scores = torch.full((len(maps), len(metrics)), torch.nan)
    if len(rows):
        some = judge.take(rows)
        sweeps = some.sweep(maps[rows])
        scored = some.score(maps[rows], sweeps)
        scores[rows] = torch.stack([scored[metric] for metric in metrics], 1)
        frame = to_frame(some.sample_ids, ["test"] * len(rows), sweeps)
        write_table(folder / f"{name}.parquet", frame, {**opened.metadata(), "candidate": name})
    return Candidate(role, maps, scores, passes)


# ------------------------------------------------------------------------------------------------------------------- ranks


def rank_candidates(candidates: dict[str, Candidate], metrics: list[str]) -> tuple[Tensor, list[int | None]]:
    """Mid-ranks (B, K, M) among all whose role is not `APART`, and which candidates repeat an earlier one of the same role."""
    items = list(candidates.values())
    scores = torch.stack([item.scores for item in items], 1)
    blank = torch.full_like(next(item.attribution for item in items if item.attribution is not None), torch.nan)
    maps = torch.stack([blank if item.attribution is None else item.attribution for item in items], 1)
    leaders = ranking.duplicates(maps)
    # A copy of a reference or of another role's map is still a row of its own: the roles are compared, not merged.
    duplicate_of = [
        leader if leader is not None and items[leader].role == items[k].role else None for k, leader in enumerate(leaders)
    ]
    pool = [k for k, item in enumerate(items) if item.role not in APART]
    return ranking.candidate_ranks(scores, metrics, pool, duplicate_of), duplicate_of


def oracle_scores(candidates: dict[str, Candidate], ranks: Tensor, metrics: list[str]) -> Tensor:
    """Scores of the best supervising prior of each sample, by its mean rank there (the first of equals)."""
    priors = [k for k, item in enumerate(candidates.values()) if item.role == "supervision"]
    mean = ranking.mean_rank(ranks, metrics)[:, priors]
    best = torch.where(mean.isnan(), torch.inf, mean).argmin(1)
    scores = torch.stack([item.scores for item in candidates.values()], 1)[:, priors]
    return scores[torch.arange(len(best)), best]


# ----------------------------------------------------------------------------------------------------------------- results


def _summarise(
    opened: Workspace,
    judge: Judge,
    candidates: dict[str, Candidate],
    names: list[str],
    ranks: Tensor,
    duplicate_of: list[int | None],
    metrics: list[str],
) -> dict[str, Any]:
    params, samples = opened.params, opened.samples
    scores = torch.stack([candidates[name].scores for name in names], 1).double()
    mean = ranking.mean_rank(ranks, metrics)
    rows = _interval(scores.flatten(1), params).rows()
    reference = names.index(params.report.reference)
    differences = _interval((scores - scores[:, [reference]]).flatten(1), params).rows()
    family = ranking.family_rank(ranks, metrics).nanmean(0)
    without = ranking.mean_rank(ranks, metrics, without=("fe", "mc"))
    mean_rows = _interval(mean, params).rows()
    table = {}
    for k, name in enumerate(names):
        leader = duplicate_of[k]
        table[name] = {
            "role": candidates[name].role,
            "mean_rank": mean_rows[k]["mean"],
            "mean_rank_low": mean_rows[k]["low"],
            "mean_rank_high": mean_rows[k]["high"],
            "family_rank": _number(family[k]),
            "mean_rank_without_fe_mc": _number(without[:, k].nanmean()),
            "metrics": {metric: rows[k * len(metrics) + m] for m, metric in enumerate(metrics)},
            "difference": {
                metric: {end: differences[k * len(metrics) + m][end] for end in ("mean", "low", "high")}
                for m, metric in enumerate(metrics)
            },
            "passes": candidates[name].passes,
            "training_passes": None,
            "changes": None,
            "duplicate_of": None if leader is None else names[leader],
        }
    explainers = params.modality(opened.task).explainers
    explainer = next(iter(explainers), None)
    for name in explainers:
        info = read_json(workspace.explainer_folder(opened.task, name) / "model.json")
        table[name]["training_passes"] = info["training_passes"]
        table[name]["changes"] = changes(explainers, name)
    result: dict[str, Any] = {
        "task": opened.task,
        "modality": opened.settings.modality,
        "n_test": len(judge.sample_ids),
        "n_features": samples.features.n,
        "target": {"accuracy": opened.target.info["accuracy"], "auc": opened.target.info["auc"]},
        "conventions": {
            "baseline": opened.settings.game.baseline,
            "insertion_baseline": opened.settings.game.insertion_baseline,
            "output": opened.settings.game.output,
            "convention": params.metrics.convention,
            "mc_absolute": params.metrics.mc_absolute,
            "steps": opened.settings.game.steps,
            "masks": judge.bernoulli.keep.shape[1],
            "fixed_size_fraction": opened.settings.bank.fixed_size_fraction,
            "seed": params.seed,
        },
        "candidates": table,
        "runner_up": None,
        "versus": {},
        "ceiling": None,
        "inf_over_ceiling": {},
    }
    if explainer is not None:
        result["versus"] = rank_differences(mean, without, candidates, names, duplicate_of, explainer, params)
        rivals = [
            name
            for name in names
            if candidates[name].role in ("supervision", "baseline", "control") and table[name]["mean_rank"] is not None
        ]
        best = min(rivals, key=lambda name: (table[name]["mean_rank"], name))
        result["runner_up"] = {"explainer": explainer, "candidate": best, **result["versus"][best]}
    if "exact_banzhaf" in candidates and "inf" in metrics:
        ceiling = scores[:, names.index("exact_banzhaf"), metrics.index("inf")]
        result["ceiling"] = _interval(ceiling[:, None], params).rows()[0]
        for k, name in enumerate(names):
            ratio = scores[:, k, metrics.index("inf")].nanmean() / ceiling.nanmean()
            result["inf_over_ceiling"][name] = _number(ratio)
    return result


def changes(explainers: dict[str, ExplainerSettings], name: str) -> dict[str, Any]:
    """What an explainer has otherwise than the first of its modality: dotted keys with its own values; its module, if another."""
    first, own = next(iter(explainers.values())), explainers[name]
    if own.module != first.module:
        return {"module": own.module}
    theirs = dotted(first.model_dump())
    return {key: value for key, value in dotted(own.model_dump()).items() if value != theirs[key]}


def rank_differences(
    mean: Tensor,
    without: Tensor,
    candidates: dict[str, Candidate],
    names: list[str],
    duplicate_of: list[int | None],
    explainer: str,
    params: Params,
) -> dict[str, dict[str, Any]]:
    """Paired differences of per-sample mean ranks, explainer minus each other candidate: below 0 the explainer is better.

    `p_holm` is the p value of the Wilcoxon signed-rank test, adjusted by Holm's procedure over all that the explainer is compared
    with: every ranked candidate and the median prior. A duplicate is no comparison of its own and has the value of the row that
    stands for it; references and refined maps are shown, not tested (None). `separable` says that the interval excludes 0 and
    that the adjusted p value is at most 1 - confidence. `without_fe_mc` is the difference of mean ranks over the other metrics.
    """
    priors = [k for k, name in enumerate(names) if candidates[name].role == "supervision"]
    others = [name for name in names if name != explainer]

    def lead(ranks: Tensor) -> Tensor:
        columns = torch.cat([ranks[:, [names.index(name) for name in others]], _median(ranks[:, priors])[:, None]], 1)
        return ranks[:, [names.index(explainer)]] - columns

    leads = lead(mean)
    rows, other_rows = _interval(leads, params).rows(), _interval(lead(without), params).rows()
    leaders = [duplicate_of[names.index(name)] for name in others]
    tested = [candidates[name].role not in APART and leader is None for name, leader in zip(others, leaders, strict=True)]
    p = torch.where(torch.tensor([*tested, True]), ranking.wilcoxon(leads), torch.nan)
    adjusted = dict(zip([*others, "median_prior"], ranking.holm(p).tolist(), strict=True))
    for name, leader in zip(others, leaders, strict=True):
        if leader is not None and names[leader] in adjusted:
            adjusted[name] = adjusted[names[leader]]
    versus = {}
    for (name, p_holm), row, other in zip(adjusted.items(), rows, other_rows, strict=True):
        apart = row["low"] is not None and row["high"] is not None and not row["low"] <= 0 <= row["high"]
        versus[name] = {
            "mean_rank_difference": {end: row[end] for end in ("mean", "low", "high")},
            "without_fe_mc": {end: other[end] for end in ("mean", "low", "high")},
            "p_holm": None if p_holm != p_holm else p_holm,
            "separable": apart and p_holm <= 1 - params.evaluate.confidence,
        }
    return versus


def _median(values: Tensor) -> Tensor:
    """Median over columns, the mean of the middle two for an even number; undefined ones are left out."""
    return torch.nanquantile(values, 0.5, dim=1)


def _interval(values: Tensor, params: Params) -> ranking.Interval:
    return ranking.interval(values, repeats=params.evaluate.bootstrap, confidence=params.evaluate.confidence, seed=params.seed)


def _number(value: Tensor) -> float | None:
    number = float(value)
    return None if number != number else number


def _short(result: dict[str, Any]) -> dict[str, Any]:
    """What `dvc metrics` shows and a diff should say: one number a metric."""
    return {
        "target": result["target"],
        "candidates": {
            name: {
                "mean_rank": row["mean_rank"],
                "family_rank": row["family_rank"],
                **{metric: value["mean"] for metric, value in row["metrics"].items()},
            }
            for name, row in result["candidates"].items()
        },
    }


def score_frame(ids: Tensor, candidates: dict[str, Candidate], metrics: list[str]) -> pl.DataFrame:
    names = list(candidates)
    scores = torch.stack([candidates[name].scores for name in names], 1)
    count = len(names) * len(metrics)
    return pl.DataFrame(
        {
            "sample_id": ids.numpy().repeat(count),
            "candidate": np.tile(np.repeat(np.array(names, dtype=object), len(metrics)), len(ids)),
            "metric": np.tile(np.array(metrics, dtype=object), len(ids) * len(names)),
            "value": scores.flatten().numpy(),
        },
        schema_overrides={"candidate": pl.String, "metric": pl.String},
    ).with_columns(pl.col("value").fill_nan(None))


def _write_maps(opened: Workspace, maps: list[tuple[str, Tensor, Tensor]], path: Path) -> None:
    """Maps of the candidates that are no prior method, as they are shown; a map that is not finite is left out."""
    columns: dict[str, list[Any]] = {"sample_id": [], "candidate": []}
    parts = []
    for name, ids, attribution in maps:
        finite = torch.isfinite(attribution).all(1)
        columns["sample_id"] += ids[finite].tolist()
        columns["candidate"] += [name] * int(finite.sum())
        parts.append(opened.samples.features.to_map(attribution[finite]))
    table = pa.table(
        {
            "sample_id": pa.array(columns["sample_id"], pa.int64()),
            "candidate": pa.array(columns["candidate"], pa.string()),
            "attribution": maps_column(torch.cat(parts)),
        }
    )
    write_table(path, table, opened.metadata())
