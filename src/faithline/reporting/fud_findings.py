"""What the numbers say about FUD: the paper's statements that a run can test, those that it cannot, and our own about the score.

A verdict needs intervals: confirmed where all that a claim names lie on its side, refuted where one lies on the other, otherwise
undecided.
"""

from collections.abc import Callable, Iterable, Sequence

from faithline.reporting.findings import Finding, Verdict
from faithline.reporting.fud_results import QUALITY, FudResults
from faithline.reporting.fud_section import PUBLISHED, RIVALS, shown
from faithline.reporting.leaderboard import Comparison, interval_text, listing, number, range_text
from faithline.reporting.records import Interval
from faithline.reporting.results import Inputs

PAPER = "Faithfulness Under the Distribution (FUD, ICLR 2026)"
NEAR_CHANCE = (0.4, 0.6)
"""AUROC in which pictures are called in-distribution."""
ABOUT_FIVE = (0.025, 0.1)
"""Share of remaining steps that still is about 5 %: a factor of two either way."""
REMOVED = 0.5
"""Least share of the target's fall that a second classifier must follow."""
AGREED = 0.95
"""Least share of the reference's separated pairs."""
_VERDICTS: dict[Comparison, Verdict] = {"better": "confirmed", "worse": "refuted", "undecided": "undecided"}

Judged = tuple[Verdict, str]
"""A task's verdict and its numbers."""


def findings(inputs: Inputs) -> list[Finding]:
    """Every claim about FUD, in a fixed order; none where no image task is judged."""
    tasks = {name: task.results for name, task in inputs.fud.items() if task.results.kind == "image"}
    tables = {name: task.results for name, task in inputs.fud.items()}
    found = []
    if tables:
        found += [_finding(tables, *entry) for entry in _EVERYWHERE]
    if tasks:
        found += [_finding(tasks, *entry) for entry in _IMAGES]
        found.append(_published(tasks))
    return found


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several comparisons or tasks: refuted by one, confirmed only by all; untestable where nothing was compared."""
    seen = set(verdicts)
    if "refuted" in seen:
        return "refuted"
    if seen <= {"untestable"}:
        return "untestable"
    return "confirmed" if seen == {"confirmed"} else "undecided"


def _finding(
    tasks: dict[str, FudResults], claim: str, source: str, judge: Callable[[FudResults], Judged], note: str = ""
) -> Finding:
    judged = {name: judge(results) for name, results in tasks.items()}
    evidence = "; ".join(f"{name}: {text}" for name, (_, text) in judged.items()) + "."
    verdict = overall(verdict for verdict, _ in judged.values())
    if verdict == "undecided":  # findings have three verdicts, and the evidence says which kind of untestable it is
        verdict, evidence = "untestable", f"Undecided at this size. {evidence}"
    return Finding(claim, source, verdict, evidence + (f" {note}" if note else ""))


def within(interval: Interval | None, low: float, high: float) -> Verdict:
    """Whether a value lies in a range: only where its whole interval lies inside, or outside on one side."""
    if interval is None or interval.low is None or interval.high is None:
        return "untestable"
    if low <= interval.low and interval.high <= high:
        return "confirmed"
    return "refuted" if interval.high < low or interval.low > high else "undecided"


def _rivals(results: FudResults, keys: Sequence[str], *, above: dict[str, bool], digits: int = 3) -> Judged:
    """FUD against the metrics of the paper: rival minus FUD has to be above 0, or below, by key."""
    verdicts: list[Verdict] = []
    parts = []
    for rival in PUBLISHED:
        item = results.evidence.get(rival)
        if item is None:
            continue
        against = []
        for key in keys:
            difference = item.minus_fud.get(key)
            if difference is None or difference.mean is None:
                continue
            verdicts.append(_VERDICTS[shown(difference, higher=above[key])])
            label = f"{key.upper().replace('_', '-')} " if len(keys) > 1 else ""
            against.append(f"{label}{interval_text(difference, digits)}")
        parts.append(f"{RIVALS[rival]} minus FUD {', '.join(against)}")
    if not verdicts:
        return "untestable", "no paired numbers of the metrics' pictures"
    return overall(verdicts), "; ".join(parts)


def _auroc(results: FudResults) -> Judged:
    verdict, text = _rivals(results, ["auroc"], above={"auroc": True})
    own = results.evidence.get("fud")
    return verdict, (f"FUD {number(own.auroc)}; " if own else "") + text


def _fpr95(results: FudResults) -> Judged:
    verdict, text = _rivals(results, ["fpr95"], above={"fpr95": False})
    own = results.evidence.get("fud")
    return verdict, (f"FUD {number(own.fpr95)}; " if own else "") + text


def _quality(results: FudResults) -> Judged:
    return _rivals(results, list(QUALITY), above={key: not higher for key, higher in QUALITY.items()}, digits=2)


def _chance(results: FudResults) -> Judged:
    own = results.evidence.get("fud")
    if own is None or (interval := own.intervals.get("auroc")) is None:
        return "untestable", "no interval of the energy AUROC"
    verdict = within(interval, *NEAR_CHANCE)
    if verdict == "undecided" and interval.low is not None and interval.low > 0.5:
        verdict = "refuted"
    return verdict, f"energy AUROC {number(interval.mean)} ({range_text(interval)})"


def _each(results: FudResults, of: Callable[[str], Interval | None], *, higher: bool, digits: int) -> Judged:
    """Every method has to lie on one side of 0."""
    groups: dict[Comparison, list[str]] = {"better": [], "worse": [], "undecided": []}
    known = {name: interval for name in results.of_role() if (interval := of(name)) is not None and interval.mean is not None}
    if not known:
        return "untestable", "not measured"
    for name, interval in known.items():
        groups[shown(interval, higher=higher)].append(name)
    verdict = overall(_VERDICTS[key] for key, names in groups.items() if names)
    text = f"{len(groups['better'])} of {len(known)} methods as claimed"
    text += f", the reverse for {listing(groups['worse'])}" if groups["worse"] else ""
    text += f", undecided for {listing(groups['undecided'])}" if groups["undecided"] else ""
    return verdict, text + " (" + ", ".join(f"{name} {interval_text(item, digits)}" for name, item in known.items()) + ")"


def _tau(results: FudResults) -> Judged:
    return _each(results, lambda name: results.methods[name].rivals.get("tau_above_black"), higher=True, digits=2)


def _rises(results: FudResults) -> Judged:
    return _each(results, lambda name: results.methods[name].rivals.get("rises_above_black"), higher=False, digits=2)


def _above_matched(results: FudResults) -> Judged:
    return _each(results, lambda name: results.methods[name].above_matched_random, higher=True, digits=3)


def _random_is_high(results: FudResults) -> Judged:
    """Some method has to score below random pixels: one clearly below confirms, all clearly above refute."""
    known = {name: above for name in results.of_role() if (above := results.methods[name].above_random) is not None}
    if not known:
        return "untestable", "no random order was judged"
    shows = {name: shown(interval) for name, interval in known.items()}
    below = [name for name, side in shows.items() if side == "worse"]
    verdict: Verdict = "confirmed" if below else "refuted" if set(shows.values()) == {"better"} else "undecided"
    text = f"random {number(results.methods['random'].score.mean)}" if "random" in results.methods else "random"
    return verdict, text + "; method minus random " + ", ".join(
        f"{name} {interval_text(item, 3)}" for name, item in known.items()
    )


def _hard(results: FudResults) -> Judged:
    both = results.hard_vs_soft
    if both is None or not both.hard_minus_soft:
        return "untestable", "no soft masks were sampled"
    keys = [key for key in ("psnr", "ssim", "ms_ssim", "fsim", "gmsd") if key in both.hard_minus_soft]
    keys = [key for key in keys if both.hard_minus_soft[key].mean is not None]
    verdict = overall(_VERDICTS[shown(both.hard_minus_soft[key], higher=QUALITY[key])] for key in keys)
    parts = [f"{key.upper().replace('_', '-')} {interval_text(both.hard_minus_soft[key], 3)}" for key in keys]
    return verdict, "hard minus soft " + ", ".join(parts)


def _five_per_cent(results: FudResults) -> Judged:
    chain = results.chain
    if chain is None or chain.half_way is None or chain.half_way.mean is None:
        return "untestable", "no chain was watched"
    if shown(chain.fall) != "better":
        return (
            "untestable",
            "energy tells samples from clean images as well at the end of the chain as at its start",
        )
    low, high, middle = (100 * (value or 0.0) for value in (chain.half_way.low, chain.half_way.high, chain.half_way.mean))
    verdict = within(chain.half_way, *ABOUT_FIVE)
    return verdict, f"half of the fall lies behind when {middle:.0f} % of the steps remain ({low:.0f} to {high:.0f} %)"


def _contrast(results: FudResults) -> Judged:
    unguided = [(name, item) for name, item in results.samplers.items() if name != "main" and item.changes.get("scale") == 0]
    verdicts: list[Verdict] = []
    parts = []
    for name, item in unguided:
        if item.contrast_below_main is not None:
            verdicts.append(_VERDICTS[shown(item.contrast_below_main)])
            main = results.samplers["main"].contrast
            own = interval_text(item.contrast, 3) if item.contrast else "not measured"
            first = interval_text(main, 3) if main else "not measured"
            difference = interval_text(item.contrast_below_main, 3)
            parts.append(f"methods above random {first} with the term, {own} without ({name}); difference {difference}")
    if not verdicts:
        return "untestable", "no sampler without the term was run"
    return overall(verdicts), "; ".join(parts)


def _second(results: FudResults) -> Judged:
    second = results.second
    if second is None:
        return "untestable", "no second classifier"
    if second.share.mean is None:
        return "untestable", f"the target itself does not clearly lose the class (fall {interval_text(second.target_fall, 3)})"
    share = f"{number(second.share.mean, 2)} ({range_text(second.share, 2)})"
    falls = f"target {interval_text(second.target_fall, 3)}, second classifier {interval_text(second.second_fall, 3)}"
    return within(second.share, REMOVED, float("inf")), f"it follows {share} of the target's fall ({falls})"


def _reference(results: FudResults) -> Judged:
    reference = results.reference
    if reference is None or reference.separated_pairs_agreement is None:
        return "untestable", "no reference was made"
    verdict: Verdict = "confirmed" if reference.separated_pairs_agreement >= AGREED else "refuted"
    agreed = f"{100 * reference.separated_pairs_agreement:.0f} % of the separated pairs"
    return verdict, f"{agreed}, Kendall tau {number(reference.kendall_tau, 2)}, call ratio {number(reference.call_ratio, 3)}"


_EVERYWHERE: list[tuple[str, str, Callable[[FudResults], Judged], str]] = [
    (
        "In distribution, a random order scores higher than some method, so a score says nothing without random beside it",
        "faithline, controls of FUD",
        _random_is_high,
        "Confirmed by a method whose interval lies below 0, refuted only if all lie above.",
    ),
]
_IMAGES: list[tuple[str, str, Callable[[FudResults], Judged], str]] = [
    (
        "FUD's pictures have the lowest energy AUROC of FUD, INS/DEL, Sensitivity-N and INFID",
        f"{PAPER}, test of distribution",
        _auroc,
        "",
    ),
    (
        "FUD's pictures have the highest FPR95 of FUD, INS/DEL, Sensitivity-N and INFID",
        f"{PAPER}, test of distribution",
        _fpr95,
        "",
    ),
    (
        "FUD's pictures cannot be told from clean ones by the target's energy",
        "faithline, what in-distribution would mean",
        _chance,
        f"Confirmed where the interval lies in {NEAR_CHANCE[0]} to {NEAR_CHANCE[1]}, refuted where it lies above 0.5.",
    ),
    (
        "FUD's pictures have the best quality of FUD, INS/DEL, Sensitivity-N and INFID in all seven metrics",
        f"{PAPER}, image quality",
        _quality,
        "",
    ),
    (
        "Confidence falls more smoothly under FUD than under INS/DEL (Kendall's tau), for every method",
        f"{PAPER}, smoothness",
        _tau,
        "Differences in tau, FUD minus black fill of the same pixels.",
    ),
    (
        "Confidence rises after fewer removals under FUD than under black fill, for every method",
        f"{PAPER}, motivation",
        _rises,
        "Differences in the share of removals, FUD minus black fill.",
    ),
    ("Hard masks give better pictures than soft ones", f"{PAPER}, ablation", _hard, ""),
    (
        "A chain enters the distribution when about 5 % of its steps remain",
        f"{PAPER}, experiment on the switch",
        _five_per_cent,
        "About: from half of it to twice as much.",
    ),
    (
        "Every method keeps more of the class than a random order as smooth as itself",
        "faithline, controls of FUD",
        _above_matched,
        "Differences in score.",
    ),
    (
        "The anti-class term is needed for contrast: without it the methods stand less far above a random order",
        "faithline, derived: what is removed may be implied by what is kept",
        _contrast,
        "",
    ),
    (
        "Evidence is removed, not only hidden from the target: a second classifier follows at least half of the target's fall",
        "faithline, second classifier",
        _second,
        "",
    ),
    (
        "The sampler ranks as a reference of many more calls does, on at least 95 % of the pairs that the reference separates",
        "faithline, acceptance figure",
        _reference,
        "",
    ),
]


def _published(tasks: dict[str, FudResults]) -> Finding:
    return Finding(
        "The published figures of FUD (energy AUROC .686 and .645, FPR95 .832 and .940, PSNR 25.2) are reached",
        f"{PAPER}, tables for ResNet-50 and ViT-B/16",
        "untestable",
        f"They stand for 1,000 ImageNet pictures and the ADM-256 model; judged here: {listing(list(tasks))}.",
    )
