"""What the numbers say about the published claims: a verdict each, with evidence that is generated from the results.

A claim is `confirmed` or `refuted` only where paired differences hold after Holm's correction over all candidates, where an
identity is checked sample by sample, or where the evidence says that an interval alone decides; otherwise it is `untestable` on
this run, and the evidence says why.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from faithline.config import DeepFaithSettings
from faithline.reporting.leaderboard import (
    Comparison,
    against,
    compare,
    higher_is_better,
    interval_text,
    listing,
    number,
    of_role,
    range_text,
    shows,
)
from faithline.reporting.records import Interval
from faithline.reporting.results import Inputs, TaskResults
from faithline.seeding import numpy_generator

Verdict = Literal["confirmed", "refuted", "undecided", "untestable"]
PAPER = "Learning for Highly Faithful Explainability (DeepFaith, ICLR 2026)"
_VERDICTS: dict[Comparison, Verdict] = {"better": "confirmed", "worse": "refuted", "undecided": "untestable"}
TOLERANCE = 1e-4
"""Largest rounding error of float32 scores in the per-sample identities."""


@dataclass(frozen=True)
class Finding:
    """A claim, where it was made, what this run shows and the numbers that show it."""

    claim: str
    source: str
    verdict: Verdict
    evidence: str


def document(found: Sequence[Finding]) -> list[dict[str, Any]]:
    """`reports/findings.json`."""
    return [asdict(finding) for finding in found]


def findings(inputs: Inputs) -> list[Finding]:
    """Every claim that this project can speak about, in a fixed order."""
    return [
        _every_prior(inputs),
        _most_priors(inputs),
        _published_rivals(inputs),
        _rival_explainers(inputs),
        _seeds(inputs),
        _controls(inputs),
        _one_pass(inputs),
        _ceiling(inputs),
        _without_fe_mc(inputs),
        _gap(inputs),
        _refined(inputs),
        *(_variants(inputs, ablation) for ablation in _ABLATIONS),
        _paper_form(inputs),
        _theorem(inputs),
        _irof(inputs),
        _ablation_metrics(inputs),
        _filter(inputs),
    ]


def _overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Of a claim about every task: refuted by one task, confirmed only by all."""
    seen = set(verdicts)
    if "refuted" in seen:
        return "refuted"
    return "confirmed" if seen == {"confirmed"} else "untestable"


def _every_prior(inputs: Inputs) -> Finding:
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        priors = of_role(results.evaluation, "supervision")
        groups = against(results.evaluation, priors)
        verdicts.append("refuted" if groups["worse"] else "confirmed" if len(groups["better"]) == len(priors) else "untestable")
        note = f"{task}: {results.explainer} better than {len(groups['better'])} of {len(priors)} priors"
        note += f", worse than {listing(groups['worse'])}" if groups["worse"] else ""
        note += f", not separable from {listing(groups['undecided'])}" if groups["undecided"] else ""
        name = results.explainer
        if name is not None and inputs.params.modality(task).explainers[name].model_dump().get("objective") == "local":
            note += "; it learned from removals alone and imitated none of them"
        evidence.append(note)
    return Finding(
        "One forward pass of the trained explainer is more faithful (mean rank) than every prior method",
        f"{PAPER}, abstract and comparison with prior methods",
        _overall(verdicts),
        "; ".join(evidence) + ". Better and worse mean that the paired difference holds after Holm's correction.",
    )


def _most_priors(inputs: Inputs) -> Finding:
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        evaluation = results.evaluation
        priors = of_role(evaluation, "supervision")
        groups = against(evaluation, priors)
        median = evaluation.versus.get("median_prior")
        half = len(priors) / 2
        most = len(groups["better"]) > half and (median is None or shows(median) == "better")
        verdicts.append("confirmed" if most else "refuted" if len(groups["worse"]) >= half else "untestable")
        note = f"{task}: better than {len(groups['better'])} of {len(priors)} priors"
        note += f"; against the median prior {interval_text(median.mean_rank_difference)}" if median else ""
        evidence.append(note)
    return Finding(
        "The trained explainer is more faithful than most prior methods and than the median prior",
        f"{PAPER}, comparison with prior methods (weak form)",
        _overall(verdicts),
        "; ".join(evidence) + ". Differences in mean rank, explainer minus prior; below 0 is better.",
    )


def _published_rivals(inputs: Inputs) -> Finding:
    rivals = ("integrated_gradients", "deeplift", "saliency")
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        rows = results.evaluation.candidates
        # A duplicate has the rank of the row that stands for it.
        known = list(dict.fromkeys(rows[name].duplicate_of or name for name in rivals if name in rows))
        groups = against(results.evaluation, known)
        verdicts.append("refuted" if groups["worse"] else "confirmed" if len(groups["better"]) == len(known) else "untestable")
        differences = [
            f"{name} {interval_text(results.evaluation.versus[name].mean_rank_difference)}"
            for name in known
            if name in results.evaluation.versus
        ]
        evidence.append(f"{task}: {', '.join(differences)}" if differences else f"{task}: none of them was run")
    return Finding(
        "The explainer ranks ahead of integrated gradients, DeepLIFT and saliency, as in the published table (other tasks)",
        f"{PAPER}, mean ranks against prior methods",
        _overall(verdicts),
        "; ".join(evidence) + ". Differences in mean rank, explainer minus prior.",
    )


def _rival_explainers(inputs: Inputs) -> Finding:
    """The headline explainer against networks that learn by another objective."""
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        settings, versus = inputs.params.modality(task).explainers, results.evaluation.versus
        headline = None if results.explainer is None else settings[results.explainer].module
        rivals = [name for name in of_role(results.evaluation, "explainer") if settings[name].module != headline]
        if not rivals:
            continue
        groups = against(results.evaluation, rivals)
        verdicts.append("refuted" if groups["worse"] else "confirmed" if len(groups["better"]) == len(rivals) else "untestable")
        differences = [
            f"{name} {interval_text(versus[name].mean_rank_difference)} ({shows(versus[name])})"
            for name in rivals
            if name in versus
        ]
        evidence.append(f"{task}: {', '.join(differences)}")
    return Finding(
        "The explainer is more faithful than the other trained explainers: L2X, FastSHAP, CXPlain, ViT-Shapley",
        f"{PAPER}, comparison with learning to explain",
        _overall(verdicts),
        "; ".join(evidence) + ". Differences in mean rank, explainer minus rival; sizes and epochs are the same."
        if evidence
        else "No explainer with another objective was trained.",
    )


def _seeds(inputs: Inputs) -> Finding:
    """Entries that differ in `seed_offset` only: does the answer depend on the draw of weights and batches?"""
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        settings, runner_up = inputs.params.modality(task).explainers, results.evaluation.runner_up
        if runner_up is None:
            continue
        own = settings[runner_up.explainer].model_dump(exclude={"seed_offset"})
        alike = [name for name, values in settings.items() if values.model_dump(exclude={"seed_offset"}) == own]
        rows = results.evaluation.candidates
        ranks = {name: rank for name in alike if (rank := rows[name].mean_rank) is not None}
        best = rows[runner_up.candidate].mean_rank
        if len(ranks) < 2 or best is None:
            continue
        verdicts.append("confirmed" if max(ranks.values()) < best else "refuted")
        each = ", ".join(f"{name} {number(rank, 2)}" for name, rank in ranks.items())
        deviation = number(float(np.std(list(ranks.values()), ddof=1)), 2)
        evidence.append(
            f"{task}: mean ranks {each} (standard deviation {deviation}); best of the others, {runner_up.candidate}: "
            f"{number(best, 2)}"
        )
    return Finding(
        "Whatever the training seed, the explainer's mean rank is better than that of the best prior method or control",
        "faithline, training seeds",
        _overall(verdicts),
        "; ".join(evidence) + "." if evidence else "The explainer was trained with one seed only.",
    )


def _controls(inputs: Inputs) -> Finding:
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        names = of_role(results.evaluation, "control")
        groups = against(results.evaluation, names)
        verdicts.append("refuted" if groups["worse"] else "confirmed" if len(groups["better"]) == len(names) else "untestable")
        evidence.append(f"{task}: better than {len(groups['better'])} of {len(names)} ({listing(names)})")
    return Finding(
        "The explainer is more faithful than maps that know nothing of model or sample (random, mean map; edge, centre)",
        "faithline, controls (mean map and random map are mandatory rows)",
        _overall(verdicts),
        "; ".join(evidence) + ".",
    )


def _one_pass(inputs: Inputs) -> Finding:
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        rows = results.evaluation.candidates
        modules = inputs.params.modality(task).explainers
        ours = [name for name in results.explainers if isinstance(modules[name], DeepFaithSettings)]
        passes = {name: rows[name].passes for name in ours}
        known = [value for value in passes.values() if value is not None]
        verdicts.append("untestable" if not known else "confirmed" if max(known) <= 1 else "refuted")
        priors = {name: cost for name in of_role(results.evaluation, "supervision") if (cost := rows[name].passes) is not None}
        note = f"{task}: " + ", ".join(f"{name} {number(value, 0)}" for name, value in passes.items())
        if priors:
            dearest = max(priors, key=lambda name: (priors[name], name))
            note += f"; priors up to {number(priors[dearest], 0)} ({dearest})"
        evidence.append(note)
    return Finding(
        "At test time an explanation costs one forward pass",
        f"{PAPER}, method",
        _overall(verdicts),
        "Evaluations of the target model per explanation, besides the explainer's own forward pass. " + "; ".join(evidence) + ".",
    )


def _ceiling(inputs: Inputs) -> Finding:
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        ceiling, name = results.evaluation.ceiling, results.explainer
        if not inputs.params.tasks[task].bank.exact or name is None or ceiling is None or ceiling.mean is None:
            continue
        reached = results.evaluation.candidates[name].metrics.get("inf")
        if reached is None or reached.mean is None:
            continue
        gap = ceiling.mean - reached.mean
        verdicts.append("confirmed" if gap <= 0.02 else "refuted")
        evidence.append(f"{task}: INF of {name} {number(reached.mean)}, ceiling R(x) {number(ceiling.mean)}, gap {number(gap)}")
    return Finding(
        "Where the game is enumerated exactly, the explainer comes within 0.02 of the ceiling correlation on unseen rows",
        "faithline, acceptance figure for exact games; the ceiling is the correlation of the best linear fit",
        _overall(verdicts),
        "; ".join(evidence) + "." if evidence else "No task of this run has an exact table.",
    )


def _without_fe_mc(inputs: Inputs) -> Finding:
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        rows = results.evaluation.candidates
        ranked = {
            name: rank
            for name in of_role(results.evaluation, "supervision", "baseline")
            if (rank := rows[name].mean_rank_without_fe_mc) is not None and name in results.evaluation.versus
        }
        if not ranked:
            continue
        best = min(ranked, key=lambda name: (ranked[name], name))
        difference = results.evaluation.versus[best].without_fe_mc
        verdicts.append(_VERDICTS[compare(difference, higher=False)])
        evidence.append(f"{task}: {results.explainer} minus {best} {interval_text(difference)}")
    return Finding(
        "The explainer ranks ahead of every prior method also without FE and MC, which single removals decide",
        "faithline, family-weighted reading of the ten metrics",
        _overall(verdicts),
        "Mean ranks over the other metrics, against the best prior (the interval alone decides): " + "; ".join(evidence) + "."
        if evidence
        else "No explainer was trained.",
    )


GAP: dict[str, float] = {"inf": 0.03, "del": 0.01, "ins": 0.01}
"""How far one pass may stay behind a large per-sample fit, in units of the metric."""


def _gap(inputs: Inputs) -> Finding:
    """What amortisation costs: one pass against a Banzhaf fit to the reference masks of each sample."""
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        rows, name = results.evaluation.candidates, results.explainer
        if name is None or "banzhaf" not in rows:
            continue
        parts = []
        for metric in GAP:
            if metric not in rows[name].metrics:
                continue
            behind = paired(inputs, results, name, "banzhaf", metric)
            verdicts.append(_within(behind, GAP[metric], higher=higher_is_better(metric)))
            parts.append(f"{metric.upper()} {interval_text(behind, 3)}")
        evidence.append(f"{task} ({number(rows['banzhaf'].passes, 0)} masks): {', '.join(parts)}")
    return Finding(
        "One pass is within .03 in INF and within .01 in DEL and INS of a Banzhaf fit to the reference masks of each sample",
        "faithline, acceptance figure; the fit estimates the maximiser of Eq. (1)",
        _overall(verdicts),
        "Paired differences, explainer minus fit (the interval alone decides): " + "; ".join(evidence) + "."
        if evidence
        else "The fit was not run.",
    )


def _within(difference: Interval, bound: float, *, higher: bool) -> Verdict:
    """Whether a loss is at most a bound: confirmed or refuted only where the whole interval is on one side of it."""
    if difference.low is None or difference.high is None:
        return "untestable"
    least, most = (-difference.high, -difference.low) if higher else (difference.low, difference.high)
    return "confirmed" if most <= bound else "refuted" if least > bound else "untestable"


def _refined(inputs: Inputs) -> Finding:
    """Refined maps against the very explainer that they start from."""
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        rows = results.evaluation.candidates
        for name, settings in inputs.params.modality(task).refinements.items():
            parts = []
            for metric in GAP:
                if metric not in rows[name].metrics:
                    continue
                gained = paired(inputs, results, name, settings.explainer, metric)
                verdicts.append(_VERDICTS[compare(gained, higher=higher_is_better(metric))])
                parts.append(f"{metric.upper()} {interval_text(gained, 3)}")
            evidence.append(f"{task}, {name} ({number(rows[name].passes, 0)} passes): {', '.join(parts)}")
    return Finding(
        "Refitting the explainer's map on a few removals of the sample's own makes it more faithful",
        "faithline, test-time refinement",
        _overall(verdicts),
        "Paired differences, refined minus explainer (the interval alone decides): " + "; ".join(evidence) + "."
        if evidence
        else "No map was refined.",
    )


@dataclass(frozen=True)
class _Ablation:
    """A claim that one setting of an explainer, changed alone, makes it more faithful.

    Attributes:
        key: The setting.
        side: True for values that the claim praises, False for those it holds against them, None for others.
        claim: In words.
        source: Where it was made.
    """

    key: str
    side: Callable[[Any], bool | None]
    claim: str
    source: str


_ABLATIONS = (
    _Ablation(
        "objective",
        {"full": True, "local": False, "pattern": False}.get,
        "The full objective is more faithful than either of its losses alone",
        f"{PAPER}, ablation on OCT + DeiT",
    ),
    _Ablation(
        "singles",
        lambda share: None if share is None else share > 0,
        "A share of single removals in L_LC makes the explainer more faithful than random halves alone",
        "faithline, derived: FE and MC are Eq. (1) under single removals, INF under random halves",
    ),
    _Ablation(
        "augmented",
        lambda used: used,
        "Learning from augmented inputs too makes the explainer more faithful",
        "faithline: the target answers for any input, so training inputs need no label",
    ),
    _Ablation(
        "head",
        {"signed": True, "sigmoid": False, "minmax": False}.get,
        "Confining attributions to [0, 1] costs faithfulness: all else equal, a signed head ranks better than sigmoid or min-max",
        "faithline, derived: a min-max shift adds a multiple of the subset size to the score",
    ),
    _Ablation(
        "ema",
        lambda decay: None if decay is None else decay > 0,
        "A running mean of the weights makes the explainer more faithful",
        "faithline, training recipe",
    ),
)

_OPPOSITE: dict[Comparison, Comparison] = {"better": "worse", "worse": "better", "undecided": "undecided"}


def _variants(inputs: Inputs, ablation: _Ablation) -> Finding:
    """The headline explainer against variants that differ from it in one setting only, whichever side it is on."""
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        settings = inputs.params.modality(task).explainers
        name = results.explainer
        if name is None:
            continue
        own = settings[name].model_dump()
        for variant, values in settings.items():
            changed = values.model_dump()
            sides = ablation.side(own.get(ablation.key)), ablation.side(changed.get(ablation.key))
            versus = results.evaluation.versus.get(variant)
            if versus is None or None in sides or sides[0] == sides[1]:
                continue
            if {**changed, ablation.key: own.get(ablation.key)} != own:
                continue
            shown = shows(versus) if sides[0] else _OPPOSITE[shows(versus)]
            verdicts.append(_VERDICTS[shown])
            evidence.append(f"{task}: {name} minus {variant} {interval_text(versus.mean_rank_difference)}")
    missing = f"No trained explainer differs from the headline explainer only in `{ablation.key}`, so this run cannot say."
    evidence_text = "Mean ranks: " + "; ".join(evidence) + "." if evidence else missing
    return Finding(ablation.claim, ablation.source, _overall(verdicts), evidence_text)


def _paper_form(inputs: Inputs) -> Finding:
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        settings = inputs.params.modality(task).explainers
        name = results.explainer
        if name is None:
            continue
        own = settings[name]
        if not isinstance(own, DeepFaithSettings) or (own.inputs, own.head) != ("target_features", "signed"):
            continue
        for variant, values in settings.items():
            versus = results.evaluation.versus.get(variant)
            if not isinstance(values, DeepFaithSettings) or versus is None:
                continue
            if (values.inputs, values.head, values.objective) == ("raw", "sigmoid", "full"):
                shown = shows(versus)
                verdicts.append(_VERDICTS[shown])
                evidence.append(f"{task}: {name} minus {variant} {interval_text(versus.mean_rank_difference)}")
    return Finding(
        "The target's own features with a signed head are more faithful than the paper's form (raw input, sigmoid head)",
        "faithline, pilot study",
        _overall(verdicts),
        "Mean ranks: " + "; ".join(evidence) + ". Both changes act together here."
        if evidence
        else "The paper's form was not trained.",
    )


def _theorem(inputs: Inputs) -> Finding:
    """Theorem 1 speaks about the maximiser of Eq. (1), which is the exact Banzhaf value; only exact games can test it."""
    evidence = []
    counterexamples = 0
    for task, results in inputs.tasks.items():
        scores = results.scores.filter(pl.col("metric") == "del").drop_nulls("value")
        exact = scores.filter(pl.col("candidate") == "exact_banzhaf").select("sample_id", best=pl.col("value"))
        if exact.is_empty():
            continue
        lowest = scores.group_by("sample_id").agg(pl.col("value").min()).join(exact, on="sample_id")
        beaten = lowest.filter(pl.col("value") < pl.col("best") - TOLERANCE)
        counterexamples += len(beaten)
        evidence.append(
            f"{task}: on {len(beaten)} of {len(lowest)} samples another candidate has a lower DEL than the exact Banzhaf values"
        )
    if not evidence:
        text = "No task of this run has the exact Banzhaf values as a reference, so the maximiser is only estimated."
        return Finding(_THEOREM, f"{PAPER}, Theorem 1", "untestable", text)
    return Finding(
        _THEOREM,
        f"{PAPER}, Theorem 1",
        "refuted" if counterexamples else "untestable",
        "; ".join(evidence) + ". The theorem is exact for additive games; elsewhere Eq. (1) is a surrogate.",
    )


_THEOREM = "The order of the maximiser of Eq. (1) is optimal for deletion (and its relatives) for every model"


def _irof(inputs: Inputs) -> Finding:
    """IROF = W - DEL / p0 sample by sample, hence IROF <= W - DEL on any average, because p0 <= 1."""
    checked, worst = 0, -np.inf
    for results in inputs.tasks.values():
        conventions = results.evaluation.conventions
        if conventions.get("output") != "prob" or not {"irof", "del"} <= set(inputs.params.evaluate.metrics):
            continue
        frame = results.scores.filter(pl.col("metric").is_in(["irof", "del"])).drop_nulls("value")
        wide = frame.pivot("metric", index=["sample_id", "candidate"], values="value").drop_nulls()
        if wide.is_empty():
            continue
        checked += len(wide)
        # The strict curve has width 1; the official one is narrower, for which 1 is still an upper bound.
        worst = max(worst, float((wide["irof"] + wide["del"]).to_numpy().max()) - 1)
    if not checked:
        text = "The metrics of this run are not probabilities, or IROF or DEL was not computed."
        return Finding(_IROF, f"{PAPER}, NAP + MLP table (its VerT row has IROF .603 > .408)", "untestable", text)
    return Finding(
        _IROF,
        f"{PAPER}, NAP + MLP table (its VerT row has IROF .603 > .408)",
        "confirmed" if worst <= TOLERANCE else "refuted",
        f"{checked:,} pairs of sample and candidate; IROF + DEL \N{MINUS SIGN} 1 is at most {number(worst, 4)}.",
    )


_IROF = "IROF \N{LESS-THAN OR EQUAL TO} W \N{MINUS SIGN} DEL holds for every map, so a table that breaks it is not from one sweep"


def _ablation_metrics(inputs: Inputs) -> Finding:
    """At one feature a step FE correlates a map with the very effects that feature ablation stores."""
    verdicts: list[Verdict] = []
    evidence = []
    for task, results in inputs.tasks.items():
        rows = results.evaluation.candidates
        single = inputs.params.tasks[task].game.steps >= results.evaluation.n_features
        if not single or "feature_ablation" not in rows or "fe" not in inputs.params.evaluate.metrics:
            continue
        ablation = rows["feature_ablation"].metrics["fe"]
        pool = of_role(results.evaluation, "explainer", "supervision", "baseline")
        rivals = {
            name: mean for name in pool if (mean := rows[name].metrics["fe"].mean) is not None and name != "feature_ablation"
        }
        if ablation.mean is None or not rivals:
            continue
        best = max(rivals, key=lambda name: (rivals[name], name))
        difference = paired(inputs, results, "feature_ablation", best, "fe")
        shown = compare(difference, higher=higher_is_better("fe"))
        verdicts.append(_VERDICTS[shown])
        evidence.append(
            f"{task}: FE {number(ablation.mean)}; feature_ablation minus the next best, {best}: {interval_text(difference, 3)}"
        )
    return Finding(
        "At one feature a step, feature ablation wins FE by definition, so ranks are also given without FE and MC",
        "faithline, derived",
        _overall(verdicts),
        "; ".join(evidence) + "." if evidence else "No task removes one feature a step and ran feature ablation.",
    )


def _filter(inputs: Inputs) -> Finding:
    """From the sensitivity study: what the explainer loses in INF without the filter, and without de-duplication."""
    claim = "Dropping the p-quantile filter hurts more than dropping the de-duplication"
    source = f"{PAPER}, ablation on OCT + DeiT"
    study = inputs.sensitivity
    if study is None:
        return Finding(claim, source, "untestable", "Needs `make sensitivity`; this run curates in one way only.")
    verdicts: list[Verdict] = []
    evidence = []
    for task in dict.fromkeys(row.task for row in study.rows):
        found = {row.value: row.metrics["inf"] for row in study.rows if row.factor == "ablation" and row.task == task}
        if not {"full", "dedup", "filter"} <= set(found):
            continue
        unfiltered, duplicated = found["dedup"], found["filter"]
        below, above = _below(unfiltered, duplicated), _below(duplicated, unfiltered)
        verdicts.append("confirmed" if below else "refuted" if above else "untestable")
        shown = (("both", found["full"]), ("no filter", unfiltered), ("no de-duplication", duplicated))
        evidence.append(f"{task}: " + ", ".join(f"{name} {number(part.mean)} ({range_text(part)})" for name, part in shown))
    text = "INF in the sensitivity study (small models, intervals that overlap decide nothing): " + "; ".join(evidence) + "."
    return Finding(claim, source, _overall(verdicts), text)


def _below(first: Interval, second: Interval) -> bool:
    """Whether one interval lies wholly below another."""
    return first.high is not None and second.low is not None and first.high < second.low


def paired(inputs: Inputs, results: TaskResults, first: str, second: str, metric: str) -> Interval:
    """Bootstrap interval of the mean of first minus second over the samples where both are defined, in units of the metric."""
    frame = results.scores.filter(pl.col("metric") == metric).drop_nulls("value")
    left = frame.filter(pl.col("candidate") == first).select("sample_id", left="value")
    right = frame.filter(pl.col("candidate") == second).select("sample_id", right="value")
    both = left.join(right, on="sample_id").sort("sample_id")
    if both.is_empty():
        return Interval(mean=None, low=None, high=None)
    difference = (both["left"] - both["right"]).to_numpy().astype(np.float64)
    generator = numpy_generator(inputs.params.seed, "report", results.name, first, second, metric)
    draws = generator.integers(0, len(difference), size=(inputs.params.evaluate.bootstrap, len(difference)))
    tail = (1 - inputs.params.evaluate.confidence) / 2
    low, high = np.quantile(difference[draws].mean(1), [tail, 1 - tail])
    return Interval(mean=float(difference.mean()), low=float(low), high=float(high))
