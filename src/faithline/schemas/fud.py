"""FUD's part of `params.yaml`: the score model, how removed features are sampled, and what is judged."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from faithline.schemas.section import CheckpointSettings, Count, Fraction, Name, NonNegative, Positive, Section, UnitInterval

Window = tuple[UnitInterval, UnitInterval]
Control = Literal["random", "another", "inverse", "edge", "centre"]
Levels = Annotated[list[Fraction], Field(min_length=2)]


class ScheduleSettings(Section):
    """Noise levels of a score model: betas rise linearly from `first` to `last` over `steps`."""

    steps: Annotated[int, Field(ge=2)]
    first: Fraction
    last: Fraction

    @model_validator(mode="after")
    def _betas_rise(self) -> "ScheduleSettings":
        if self.first > self.last:
            raise ValueError(f"first = {self.first}: must be <= last ({self.last})")
        return self


class TrainedScoreSettings(Section):
    """A small `UNet2DModel` that the pipeline trains on the task's training images."""

    kind: Literal["trained"]
    channels: Annotated[list[Count], Field(min_length=1)]
    """Of each resolution; the next one has half the side."""
    layers: Count
    groups: Count
    """Groups of the normalisation; must divide every entry of `channels`."""
    schedule: ScheduleSettings
    steps: Count
    """Steps of training."""
    batch: Count
    learning_rate: Positive
    weight_decay: NonNegative
    warmup_fraction: Fraction
    ema: Annotated[float, Field(ge=0, lt=1)]
    """Decay a step of the running mean of the weights, which is what samples."""
    precision: Literal["fp32", "bf16"]
    sheet: Annotated[int, Field(ge=2)]
    """Images sampled to look at, and to measure the Frechet distance by."""

    @model_validator(mode="after")
    def _groups_divide_channels(self) -> "TrainedScoreSettings":
        if odd := [count for count in self.channels if count % self.groups]:
            raise ValueError(f"groups = {self.groups}: must divide channels, not so {odd}")
        return self


class AdmScoreSettings(Section):
    """`256x256_diffusion_uncond.pt` of openai/guided-diffusion (ADM): images of other sizes are resized for it."""

    kind: Literal["adm"]
    checkpoint: CheckpointSettings
    schedule: ScheduleSettings
    precision: Literal["fp32", "bf16"]
    sheet: Annotated[int, Field(ge=2)]


ScoreSettings = Annotated[TrainedScoreSettings | AdmScoreSettings, Field(discriminator="kind")]


class SamplerSettings(Section):
    """How removed features are sampled; the fields and their meaning are those of diffusion/presets.py."""

    denoising_steps: Annotated[int, Field(ge=0)]
    switch: Annotated[int, Field(ge=-1)]
    variance: Literal["learned_range", "fixed_small", "fixed_large"]
    kept: Literal["clean", "noised", "soft"]
    jump: Annotated[int, Field(ge=0)]
    resamples: Count
    langevin_levels: list[Annotated[int, Field(ge=0)]]
    langevin_steps: Annotated[int, Field(ge=0)]
    langevin_step: Positive
    scale: NonNegative
    term: Literal["minus_log_p", "one_minus_p"]
    at: Literal["x_t", "x0"]
    denoising_window: Window
    langevin_window: Window
    soft_sigma: Positive
    soft_step: Annotated[float, Field(gt=0, lt=2)]
    clip: Positive | None

    @model_validator(mode="after")
    def _steps_make_a_chain(self) -> "SamplerSettings":
        levels = self.langevin_levels
        rules = {
            "denoising_steps is 0, or at least 2": self.denoising_steps != 1,
            "there are denoising or Langevin steps": self.denoising_steps > 0 or bool(levels),
            "switch is -1 where no Langevin steps follow": bool(levels) or self.switch == -1,
            "langevin_steps is positive where there are langevin_levels": not levels or self.langevin_steps > 0,
            "langevin_levels fall": levels == sorted(set(levels), reverse=True),
            "jump and resamples > 1: both or neither": (self.jump > 0) == (self.resamples > 1),
            "windows are [first, second] with first <= second": all(
                low <= high for low, high in (self.denoising_window, self.langevin_window)
            ),
        }
        if broken := [rule for rule, holds in rules.items() if not holds]:
            raise ValueError("; ".join(broken))
        return self


class EvidenceSettings(Section):
    """What the in-distribution claim is measured with (detection.py, removal_metrics.py)."""

    temperature: Positive
    """Of the energy."""
    neighbours: Count
    """Of the detector in feature space."""
    subsets: Annotated[int, Field(ge=3)]
    """Random subsets a size, for Sensitivity-N."""
    noise: Positive
    """Standard deviation of INFID's noisy baseline, pixels in [0, 1]."""
    blur: Positive
    """Standard deviation of the blurred substrate, in pixels."""


class SecondClassifierSettings(Section):
    """A perceptron on pixels, trained on the task's labels: it shares neither architecture nor gradients with a target."""

    width: Count
    epochs: Count
    batch: Count
    learning_rate: Positive
    weight_decay: NonNegative


class ImageFudSettings(Section):
    """FUD of image tasks."""

    tasks: list[Name]
    methods: list[Name]
    explainers: list[Name]
    controls: list[Control]
    samples: Annotated[int, Field(ge=2)]
    """The first test samples."""
    draws: Count
    """Reconstructions of each image and level."""
    levels: Levels
    """Kept fractions."""
    unit: Literal["pixel", "patch"]
    """What stays or goes as one; stored maps have no channels."""
    patch: Count
    reduction: Literal["sum", "abs_sum"]
    target: Literal["predicted", "label"]
    """Class whose evidence is removed and whose confidence is recorded."""
    max_batch: Count
    score_model: ScoreSettings
    second_classifier: SecondClassifierSettings | None
    sampler: SamplerSettings
    variants: dict[Name, dict[str, Any]]
    """Other samplers, each with what it has otherwise than `sampler`; they run on the first `variant_samples` images."""
    variant_samples: Annotated[int, Field(ge=2)]
    evidence: EvidenceSettings

    def samplers(self) -> dict[str, SamplerSettings]:
        """Every variant's own sampler, in the order of `params.yaml`."""
        return {name: SamplerSettings.model_validate({**self.sampler.model_dump(), **own}) for name, own in self.variants.items()}

    @model_validator(mode="after")
    def _variants_are_samplers(self) -> "ImageFudSettings":
        faults, samplers = [], {"sampler": self.sampler}
        for name, own in self.variants.items():
            try:
                samplers[f"variants.{name}"] = SamplerSettings.model_validate({**self.sampler.model_dump(), **own})
            except ValidationError as error:
                for fault in error.errors():
                    key = ".".join(str(part) for part in ("variants", name, *fault["loc"]))
                    faults.append(f"{key}: {fault['msg'].removeprefix('Value error, ')}")
        if self.variant_samples > self.samples:
            faults.append(f"variant_samples = {self.variant_samples}: must be <= samples ({self.samples})")
        for name, sampler in samplers.items():
            if self.score_model.kind == "trained" and sampler.variance == "learned_range":
                faults.append(f"{name}.variance = learned_range: the trained score model learns none")
        if self.sampler.kept == "soft":
            faults.append("sampler.kept = soft: kept features deviate; soft masks are for `variants`")
        if faults:
            raise ValueError("; ".join(faults))
        return self


class TableFudSettings(Section):
    """FUD of table tasks: removed columns are drawn from a Gaussian copula, given the kept ones (copula.py)."""

    tasks: list[Name]
    methods: list[Name]
    explainers: list[Name]
    samples: Annotated[int, Field(ge=2)]
    """The first test samples."""
    draws: Count
    """Reconstructions of each sample and level."""
    levels: Levels
    """Kept fractions; each keeps the nearest number of columns that keeps some and removes some."""
    candidates: Annotated[int, Field(ge=2)]
    """Conditional draws, of which the anti-class term chooses one."""
    scale: NonNegative
    """Strength of the anti-class term."""
    sweeps: Count
    """Gibbs sweeps over discrete columns, in the fit and in each draw."""
    least_eigenvalue: Fraction
    """Smallest eigenvalue of the correlation: it is mixed with the identity until it has it."""


class FudSettings(Section):
    """In-distribution judgement of attributions."""

    image: ImageFudSettings
    table: TableFudSettings
