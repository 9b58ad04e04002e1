"""The whole schema of `params.yaml`: every key, its type and its rule, and nothing with a default.

`params.yaml` is the only source of values, so that DVC sees each of them. This module therefore imports nothing of ours but its
sections (schemas/), and nothing heavy: a wrong value is reported in a fraction of a second, before torch is loaded and before any
work starts.

    python -m faithline.config            # validate ./params.yaml
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from faithline.schemas.fud import FudSettings
from faithline.schemas.section import (
    CheckpointSettings,
    Count,
    Fraction,
    Name,
    NonNegative,
    Positive,
    Section,
    UnitInterval,
)

MAX_EXACT_FEATURES = 14
"""Largest number of features whose 2^n keep sets are enumerated."""

MAX_BACKGROUND_ROWS = 64
"""Largest number of training inputs that a method averages over."""

Role = Literal["supervision", "baseline", "reference"]
Output = Literal["prob", "logit", "logodds"]
Metric = Literal["fc", "fe", "mc", "inf", "rp", "ins", "del", "neg", "pos", "irof"]
Control = Literal["random", "mean_map", "edge", "centre"]
TrainingLaw = Literal["bernoulli", "shapley_kernel", "singles"]


class DatasetSettings(Section):
    """How many samples of each split are frozen; `supervised` training samples are explained by the prior methods."""

    train: Count
    supervised: Count
    validation: Count
    test: Count
    augmented: Annotated[int, Field(ge=0)]
    """Inputs made of training inputs, for explainers to learn from (augmentation.py)."""

    @model_validator(mode="after")
    def _supervised_within_train(self) -> "DatasetSettings":
        if self.supervised > self.train:
            raise ValueError(f"supervised ({self.supervised}) must be <= train ({self.train})")
        return self


class TableFileSettings(DatasetSettings):
    """Data of a CSV file, or of a folder of them, that the user brings."""

    path: Annotated[str, Field(min_length=1)]


class TextFileSettings(TableFileSettings):
    """Texts that the user brings: how many tokens of each are read, and how often the training split says a known word."""

    length: Count
    min_count: Count


class ImageFolderSettings(TableFileSettings):
    """A folder of pictures, one folder a class, that the user brings; inputs are square, cut into square patches."""

    image_size: Count
    patch: Count

    @model_validator(mode="after")
    def _patches_fill_the_image(self) -> "ImageFolderSettings":
        if self.image_size % self.patch:
            raise ValueError(f"image_size ({self.image_size}) must be a multiple of patch ({self.patch})")
        return self


class TrainingSettings(Section):
    """How the model to be explained is trained: all there is to say of one whose size the task file fixes.

    `epochs: 0` keeps the weights the task file builds.
    """

    epochs: Annotated[int, Field(ge=0)]
    batch: Count
    learning_rate: Positive
    weight_decay: NonNegative
    dropout: Annotated[float, Field(ge=0, lt=1)]
    layers: list[str]
    """Names of the modules whose outputs a target-reading explainer sees."""


class TargetSettings(TrainingSettings):
    """A small network of the task file's own."""

    width: Count
    depth: Count


class CheckpointTargetSettings(TargetSettings):
    """The same from a checkpoint where one is given, else from random weights."""

    checkpoint: CheckpointSettings | None

    @model_validator(mode="after")
    def _not_random(self) -> "CheckpointTargetSettings":
        _refuse_random_weights(self.epochs, self.checkpoint)
        return self


class TextTargetSettings(CheckpointTargetSettings):
    """A text network by architecture."""

    architecture: Literal["lstm", "transformer"]


class TimmTargetSettings(TrainingSettings):
    """An image model of timm by its name there, from a checkpoint where one is given, else from random weights."""

    architecture: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    checkpoint: CheckpointSettings | None

    @model_validator(mode="after")
    def _not_random(self) -> "TimmTargetSettings":
        _refuse_random_weights(self.epochs, self.checkpoint)
        return self


def _refuse_random_weights(epochs: int, checkpoint: CheckpointSettings | None) -> None:
    if not epochs and checkpoint is None:
        raise ValueError("epochs = 0 without a checkpoint would explain random weights: train, or give a checkpoint")


def _kind_of_dataset(data: Any) -> str:
    """Which dataset section is meant: a key that only one of them has tells."""
    keys = data if isinstance(data, dict) else getattr(type(data), "model_fields", ())
    return "[images]" if "image_size" in keys else "[texts]" if "length" in keys else "[table]" if "path" in keys else "[own]"


def _kind_of_target(data: Any) -> str:
    """Which target section is meant: a key that only one of them has tells."""
    keys = data if isinstance(data, dict) else getattr(type(data), "model_fields", ())
    if "architecture" in keys:
        return "[text]" if "width" in keys else "[timm]"
    if "width" in keys or "depth" in keys:
        return "[checkpoint]" if "checkpoint" in keys else "[own]"
    return "[pretrained]"


# Tags are in brackets so that messages leave them out of a key.
AnyDataset = Annotated[
    Annotated[DatasetSettings, Tag("[own]")]
    | Annotated[TableFileSettings, Tag("[table]")]
    | Annotated[TextFileSettings, Tag("[texts]")]
    | Annotated[ImageFolderSettings, Tag("[images]")],
    Discriminator(_kind_of_dataset),
]
AnyTarget = Annotated[
    Annotated[TrainingSettings, Tag("[pretrained]")]
    | Annotated[TargetSettings, Tag("[own]")]
    | Annotated[CheckpointTargetSettings, Tag("[checkpoint]")]
    | Annotated[TextTargetSettings, Tag("[text]")]
    | Annotated[TimmTargetSettings, Tag("[timm]")],
    Discriminator(_kind_of_target),
]


class GameSettings(Section):
    """What a removed feature becomes, what is measured, and how many inputs go through the model at once."""

    baseline: Literal["zero", "mean", "blur", "noise", "background", "pad", "mask"]
    insertion_baseline: Literal["same", "zero", "mean", "blur", "noise"]
    output: Output
    steps: Count
    """Points of a sweep besides the clean input; at most one feature a step."""
    max_batch: Count


class BankSettings(Section):
    """How many random masks each sample gets, by use; `exact` enumerates all 2^n keep sets once and reads them off."""

    exact: bool
    fitting: Count
    training: Count
    training_laws: list[TrainingLaw]
    """Mask laws of the training use, `training` masks each; `singles` has one mask a feature. `bernoulli` is always needed."""
    evaluation: Count
    reference: Count
    fixed_size_fraction: Fraction

    @model_validator(mode="after")
    def _bernoulli_is_there(self) -> "BankSettings":
        if "bernoulli" not in self.training_laws or len(set(self.training_laws)) < len(self.training_laws):
            raise ValueError(f"training_laws = {self.training_laws}: must name bernoulli, and no law twice")
        return self


class TaskSettings(Section):
    """One task: a dataset, a target model, and the way its input is cut into features and removed."""

    modality: Literal["image", "text", "table"]
    source: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+\.py$")]
    dataset: AnyDataset
    target: AnyTarget
    game: GameSettings
    bank: BankSettings

    @model_validator(mode="after")
    def _baseline_fits_modality(self) -> "TaskSettings":
        allowed = {
            "image": {"zero", "mean", "blur", "noise", "background"},
            "text": {"pad", "mask"},
            "table": {"zero", "mean", "noise", "background"},
        }[self.modality]
        for key, value in (("baseline", self.game.baseline), ("insertion_baseline", self.game.insertion_baseline)):
            if value not in allowed | ({"same"} if key == "insertion_baseline" else set()):
                raise ValueError(f"game.{key}={value} does not fit a {self.modality} task; one of {sorted(allowed)} does")
        return self


class BlurSettings(Section):
    """Gaussian blur of the image itself."""

    sigma: Positive


class NoiseSettings(Section):
    """Seeded Gaussian noise in the units of the normalised input."""

    std: Positive


class BackgroundSettings(Section):
    """Rows of the training split whose average effect is taken; each costs one pass a mask."""

    rows: Count


class BaselineSettings(Section):
    """Strengths of the baselines that have one."""

    blur: BlurSettings
    noise: NoiseSettings
    background: BackgroundSettings


class MethodSettings(Section):
    """What every method has: a role. `supervision` feeds `curate`, `baseline` is only ranked, `reference` is shown apart."""

    role: Role


class GradientSettings(MethodSettings):
    """A method that differentiates the target; `output` says what."""

    output: Literal["prob", "logit"]


class SaliencySettings(GradientSettings):
    """Gradient; `absolute` drops its sign."""

    absolute: bool


class IntegratedGradientsSettings(GradientSettings):
    """Integrated gradients from the task's baseline with `steps` points of the path."""

    steps: Count


class GuidedIntegratedGradientsSettings(IntegratedGradientsSettings):
    """A path on which the `fraction` of features with the smallest gradient goes first, within a band of `max_dist`."""

    fraction: Annotated[float, Field(gt=0, le=1)]
    max_dist: UnitInterval


class WalkSettings(GradientSettings):
    """A method that walks away from the input; `clip` is the range of valid inputs in their own units, or null."""

    clip: tuple[float, float] | None

    @model_validator(mode="after")
    def _clip_is_a_range(self) -> "WalkSettings":
        if self.clip is not None and self.clip[0] >= self.clip[1]:
            raise ValueError(f"clip = {list(self.clip)}: must be [lowest, highest]")
        return self


class BoundaryIntegratedGradientsSettings(WalkSettings):
    """Integrated gradients, `steps` points of the path, from the nearest adversarial point of attacks within L2 `radii`.

    Each attack takes `attack_steps` steps of the share `step` of its radius.
    """

    radii: Annotated[list[Positive], Field(min_length=1)]
    attack_steps: Count
    step: Positive
    steps: Count

    @model_validator(mode="after")
    def _attacks_reach_their_radius(self) -> "BoundaryIntegratedGradientsSettings":
        if self.attack_steps * self.step < 1:
            raise ValueError(f"attack_steps = {self.attack_steps} steps of step = {self.step} never reach the radius")
        return self


class AdversarialGradientIntegrationSettings(WalkSettings):
    """At most `steps` displacements of `eps` towards each of `classes` other classes."""

    eps: Positive
    steps: Count
    classes: Count


class MfabaSettings(WalkSettings):
    """At most `steps` steps of length `alpha` away from the class, along signs (`smooth`) or the normed gradient (`sharp`)."""

    alpha: Positive
    steps: Count
    path: Literal["smooth", "sharp"]


class AttExploreSettings(WalkSettings):
    """`steps` steps over `eps` altogether, along the gradients of `samples` copies perturbed in frequency by up to `rho`."""

    eps: Positive
    steps: Count
    samples: Count
    rho: UnitInterval
    noise: NonNegative
    resize: Annotated[float, Field(ge=1)]
    smoothing: Annotated[int, Field(ge=1)]
    momentum: NonNegative

    @model_validator(mode="after")
    def _smoothing_has_a_middle(self) -> "AttExploreSettings":
        if self.smoothing % 2 == 0:
            raise ValueError(f"smoothing = {self.smoothing}: must be odd")
        return self


class IsaSettings(WalkSettings):
    """Values leave `block` by block after two walks of `steps` noisy steps of `alpha`; blocks grow by `factor`."""

    block: Count
    steps: Count
    alpha: Positive
    factor: Annotated[float, Field(gt=1)]
    noise: NonNegative


class LocalAttributionSettings(WalkSettings):
    """`steps` displacements of |x| / `spatial_range` towards each of `classes` other classes, and away from the class."""

    spatial_range: Positive
    steps: Count
    classes: Count


class ExpectedGradientsSettings(GradientSettings):
    """Expected gradients (GradientShap): `samples` random background rows and path points a sample."""

    samples: Count


class SmoothGradSettings(GradientSettings):
    """Gradient averaged over `samples` noisy inputs; the noise's standard deviation is the share `std` of the input's range."""

    samples: Count
    std: Positive


class DeepLiftShapSettings(GradientSettings):
    """DeepLIFT averaged over `rows` training inputs as baselines."""

    rows: Annotated[int, Field(ge=1, le=MAX_BACKGROUND_ROWS)]


class LrpSettings(MethodSettings):
    """Layer-wise relevance propagation of the logit: epsilon rule at both ends, gamma rule between."""

    epsilon: Positive
    gamma: NonNegative


class ScoreCamSettings(GradientSettings):
    """Score-CAM on the `channels` channels with the largest |Grad-CAM weight|, one pass each."""

    channels: Count


class OcclusionSettings(MethodSettings):
    """Sliding window of `window` features moved by `stride` features."""

    window: Count
    stride: Count


class LimeSettings(MethodSettings):
    """LIME as a closed-form weighted ridge fit on `masks` Bernoulli masks of the bank."""

    masks: Count
    kernel_width: Positive
    ridge: NonNegative


class KernelShapSettings(MethodSettings):
    """KernelSHAP as a closed-form fit with the efficiency constraint on `masks` Shapley-kernel masks of the bank."""

    masks: Count
    ridge: NonNegative


class RiseSettings(MethodSettings):
    """RISE on `masks` Bernoulli masks of the bank."""

    masks: Count


class ShapleySamplingSettings(MethodSettings):
    """Shapley values from `permutations` random permutations of the features, n - 1 passes each."""

    permutations: Count


class BanzhafSettings(MethodSettings):
    """Least-squares Banzhaf values from the reference masks of the bank."""

    ridge: NonNegative


class Methods(Section):
    """The prior methods of a modality; leave one out and its column is not made."""

    saliency: SaliencySettings | None = None
    smooth_grad: SmoothGradSettings | None = None
    input_x_gradient: GradientSettings | None = None
    guided_backprop: GradientSettings | None = None
    deconvolution: GradientSettings | None = None
    integrated_gradients: IntegratedGradientsSettings | None = None
    guided_integrated_gradients: GuidedIntegratedGradientsSettings | None = None
    boundary_integrated_gradients: BoundaryIntegratedGradientsSettings | None = None
    fast_integrated_gradients: GradientSettings | None = None
    expected_gradients: ExpectedGradientsSettings | None = None
    adversarial_gradient_integration: AdversarialGradientIntegrationSettings | None = None
    mfaba: MfabaSettings | None = None
    attexplore: AttExploreSettings | None = None
    isa: IsaSettings | None = None
    local_attribution: LocalAttributionSettings | None = None
    deeplift: GradientSettings | None = None
    deeplift_shap: DeepLiftShapSettings | None = None
    lrp: LrpSettings | None = None
    occlusion: OcclusionSettings | None = None
    feature_ablation: MethodSettings | None = None
    lime: LimeSettings | None = None
    kernel_shap: KernelShapSettings | None = None
    shapley_sampling: ShapleySamplingSettings | None = None
    rise: RiseSettings | None = None
    grad_cam: GradientSettings | None = None
    grad_cam_plus_plus: GradientSettings | None = None
    score_cam: ScoreCamSettings | None = None
    attention_rollout: MethodSettings | None = None
    generic_attention: GradientSettings | None = None
    banzhaf: BanzhafSettings | None = None
    exact_shapley: MethodSettings | None = None
    exact_banzhaf: MethodSettings | None = None

    _order: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _remember_order(cls, data: Any, handler: ModelWrapValidatorHandler["Methods"]) -> "Methods":
        methods = handler(data)
        methods._order = tuple(data) if isinstance(data, dict) else data._order
        return methods

    def __contains__(self, name: str) -> bool:
        """Whether a method is configured."""
        return name in type(self).model_fields and getattr(self, name) is not None

    def names(self) -> list[str]:
        """The configured methods in the order of `params.yaml`, which is the order of de-duplication."""
        return [name for name in self._order if getattr(self, name) is not None]

    def roles(self) -> dict[str, Role]:
        """Role of each configured method."""
        return {name: getattr(self, name).role for name in self.names()}


class AlphaSettings(Section):
    """The dynamic weight of Algorithm 1; `tau_decay` and `reset_factor` are the paper's single constant C, split."""

    epsilon: Positive
    window: Annotated[int, Field(ge=2)]
    tau_decay: Annotated[float, Field(ge=1)]
    reset_factor: Annotated[float, Field(ge=1)]


class ExplainerTraining(Section):
    """What every trained explainer has: the network, the optimiser, the length of training."""

    inputs: Literal["raw", "target_features"]
    augmented: bool
    """Learn also from the augmented inputs of the task."""
    width: Count
    depth: Count
    heads: Count
    dropout: Annotated[float, Field(ge=0, lt=1)]
    epochs: Count
    batch: Annotated[int, Field(ge=2)]
    learning_rate: Positive
    weight_decay: NonNegative
    warmup_fraction: UnitInterval
    precision: Literal["fp32", "bf16"]
    devices: Count
    seed_offset: Annotated[int, Field(ge=0)]
    """Added to `seed` for this explainer only: entries that differ in nothing else show the spread of training."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ExplainerTraining":
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")
        return self


class DeepFaithSettings(ExplainerTraining):
    """DeepFaith: imitation of curated maps, then the local correlation with the bank's effects."""

    module: Literal["deepfaith"]
    head: Literal["sigmoid", "minmax", "signed"]
    objective: Literal["full", "pattern", "local"]
    singles: UnitInterval
    """Share of L_LC that is about single removals (`singles` masks); the rest is about random ones."""
    ema: Annotated[float, Field(ge=0, lt=1)]
    """Decay a step of the running mean of the weights that is validated and kept; 0 keeps the weights themselves."""
    masks_per_step: Annotated[int, Field(ge=3)]
    alpha: AlphaSettings


class ShapleySettings(ExplainerTraining):
    """An explainer that regresses on Shapley-kernel masks."""

    masks_per_step: Count


class FastShapSettings(ShapleySettings):
    """FastSHAP: Shapley values of the explained model itself."""

    module: Literal["fastshap"]


class SurrogateSettings(Section):
    """Fine-tuning of the copy of the target that learns to answer masked inputs."""

    epochs: Count
    batch: Count
    learning_rate: Positive


class VitShapleySettings(ShapleySettings):
    """ViT-Shapley: FastSHAP's regression on the values of a surrogate of the target."""

    module: Literal["vit_shapley"]
    surrogate: SurrogateSettings


class CxplainSettings(ExplainerTraining):
    """CXPlain: the distribution of single-feature effects."""

    module: Literal["cxplain"]


class VertSettings(ExplainerTraining):
    """VerT: the smallest mask under which a fine-tuned copy of the target answers as the target does.

    The copy is what is explained; its masks are judged on the target all the same.
    """

    module: Literal["vert"]
    sparsity: Positive
    """Weight of the mean mask against the two distances between answers."""
    copy_learning_rate: Positive


class L2xSettings(ExplainerTraining):
    """L2X: a subset of at most `subset` features from which the target's output can be predicted."""

    module: Literal["l2x"]
    subset: Count
    temperature: Positive


ExplainerSettings = Annotated[
    DeepFaithSettings | FastShapSettings | VitShapleySettings | CxplainSettings | L2xSettings | VertSettings,
    Field(discriminator="module"),
]
"""One trained explainer; `module` says which keys it has. Variants share a module: an ablation is one more entry."""

LAW_OF_MODULE: dict[str, TrainingLaw] = {
    "deepfaith": "bernoulli",
    "fastshap": "shapley_kernel",
    "vit_shapley": "shapley_kernel",
    "cxplain": "singles",
}
"""Which masks of the training bank a module learns from; those left out learn from none."""


class RefinementSettings(Section):
    """Test-time refinement: an explainer's map, refitted on `masks` Bernoulli masks of the sample's own (refinement.py)."""

    explainer: Name
    masks: Annotated[int, Field(ge=3)]


class ModalitySettings(Section):
    """Tasks of one modality with the prior methods, explainers and refinements that each of them gets."""

    tasks: list[Name]
    methods: Methods
    explainers: dict[Name, ExplainerSettings]
    refinements: dict[Name, RefinementSettings]


class CurvesSettings(Section):
    """Sweeps; `skip_duplicates` leaves out those of maps that curation will drop."""

    skip_duplicates: bool


class MetricSettings(Section):
    """Conventions of the ten metrics (docs/metrics.md)."""

    convention: Literal["strict", "official"]
    mc_absolute: bool
    min_prob: Fraction
    """Samples whose clean probability is below this have no IROF and no MC (their ratios explode)."""


class CurateSettings(Section):
    """Which maps may teach: near-duplicates go (cosine >= `cosine`), then a map must pass the p-quantile of every metric.

    `leader` says which of near-duplicates stays, `weights` how much each kept map of a sample counts.
    """

    cosine: Annotated[float, Field(gt=0, le=1)]
    leader: Literal["first", "best_mean_rank"]
    weights: Literal["equal", "rank"]
    quantile: Annotated[float, Field(ge=0, lt=0.5)]
    on_empty: Literal["best_mean_rank", "drop"]
    max_non_finite_fraction: UnitInterval


class EvaluateSettings(Section):
    """Ranks and intervals on the test split."""

    metrics: Annotated[list[Metric], Field(min_length=1)]
    controls: Annotated[list[Control], Field(min_length=1)]
    bootstrap: Annotated[int, Field(ge=100)]
    confidence: Fraction


class ReportSettings(Section):
    """What the report shows; paired differences are taken against `reference`."""

    gallery: Count
    reference: Name


class Params(Section):
    """All of `params.yaml`."""

    seed: Annotated[int, Field(ge=0, lt=2**31)]
    tasks: Annotated[dict[Name, TaskSettings], Field(min_length=1)]
    table: ModalitySettings
    text: ModalitySettings
    image: ModalitySettings
    baselines: BaselineSettings
    curves: CurvesSettings
    metrics: MetricSettings
    curate: CurateSettings
    evaluate: EvaluateSettings
    fud: FudSettings
    report: ReportSettings

    def modality(self, task: str) -> ModalitySettings:
        """The modality section that a task belongs to."""
        return {"table": self.table, "text": self.text, "image": self.image}[self.tasks[task].modality]

    def sha256(self) -> str:
        """Digest of all values."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()

    @model_validator(mode="after")
    def _sections_agree(self) -> "Params":
        faults: list[str] = []
        for modality in ("table", "text", "image"):
            section: ModalitySettings = getattr(self, modality)
            expected = [name for name, task in self.tasks.items() if task.modality == modality]
            if sorted(section.tasks) != sorted(expected):
                faults.append(
                    f"{modality}.tasks = {section.tasks}: must list exactly the {modality} tasks of `tasks`: {expected}"
                )
            roles = section.methods.roles()
            if section.tasks and "supervision" not in roles.values():
                faults.append(f"{modality}.methods: at least one must have role supervision")
            for name in sorted(set(roles) & set(section.explainers)):
                faults.append(f"{modality}.explainers.{name}: a method has the same name, and their outputs share folders")
            for name in expected:
                bank, train = self.tasks[name].bank, self.tasks[name].dataset.train
                for method, key, limit, where in (
                    ("lime", "masks", bank.fitting, "bank.fitting"),
                    ("kernel_shap", "masks", bank.fitting, "bank.fitting"),
                    ("rise", "masks", bank.fitting, "bank.fitting"),
                    ("deeplift_shap", "rows", train, "dataset.train"),
                ):
                    settings = getattr(section.methods, method)
                    if settings is not None and getattr(settings, key) > limit:
                        faults.append(
                            f"{modality}.methods.{method}.{key} = {getattr(settings, key)}: "
                            f"must be <= tasks.{name}.{where} ({limit})"
                        )
                for explainer, settings in section.explainers.items():
                    if isinstance(settings, DeepFaithSettings | ShapleySettings) and settings.masks_per_step > bank.training:
                        faults.append(
                            f"{modality}.explainers.{explainer}.masks_per_step = {settings.masks_per_step}: "
                            f"must be <= tasks.{name}.bank.training ({bank.training})"
                        )
                    needed = [("module", settings.module, LAW_OF_MODULE.get(settings.module, "bernoulli"))]
                    if isinstance(settings, DeepFaithSettings) and settings.singles > 0:
                        needed.append(("singles", settings.singles, "singles"))
                    for key, value, law in needed:
                        if law not in bank.training_laws:
                            faults.append(
                                f"{modality}.explainers.{explainer}.{key} = {value!r}: "
                                f"needs {law} in tasks.{name}.bank.training_laws ({', '.join(bank.training_laws)})"
                            )
            for name, refinement in section.refinements.items():
                if name in roles or name in section.explainers:
                    faults.append(f"{modality}.refinements.{name}: a method or an explainer has the same name")
                if refinement.explainer not in section.explainers:
                    faults.append(
                        f"{modality}.refinements.{name}.explainer = {refinement.explainer!r}: "
                        f"must be one of {modality}.explainers {sorted(section.explainers)}"
                    )
                for task in expected:
                    if refinement.masks > (limit := self.tasks[task].bank.fitting):
                        faults.append(
                            f"{modality}.refinements.{name}.masks = {refinement.masks}: "
                            f"must be <= tasks.{task}.bank.fitting ({limit})"
                        )
            if section.tasks and self.report.reference not in roles:
                faults.append(f"report.reference = {self.report.reference!r}: must be one of {modality}.methods {sorted(roles)}")
        faults += self._fud_faults()
        for name in self.tasks:
            if not Path(self.tasks[name].source).is_file():
                faults.append(f"tasks.{name}.source = {self.tasks[name].source!r}: no such file")
        if self.curves.skip_duplicates and self.curate.leader != "first":
            faults.append(
                f"curate.leader = {self.curate.leader!r}: needs the sweeps of all maps, so curves.skip_duplicates must be false"
            )
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def _fud_faults(self) -> list[str]:
        """What FUD names that the rest of the params does not know, or has too little of."""
        faults: list[str] = []
        for modality, fud, section in (("image", self.fud.image, self.image), ("table", self.fud.table, self.table)):
            for key, names, known in (
                ("tasks", fud.tasks, section.tasks),
                ("methods", fud.methods, section.methods.names()),
                ("explainers", fud.explainers, list(section.explainers)),
            ):
                if fud.tasks and (strangers := sorted(set(names) - set(known))):
                    faults.append(
                        f"fud.{modality}.{key} = {names}: {', '.join(strangers)} not in {modality}.{key} {sorted(known)}"
                    )
            for task in fud.tasks:
                if task in self.tasks and fud.samples > (limit := self.tasks[task].dataset.test):
                    faults.append(f"fud.{modality}.samples = {fud.samples}: must be <= tasks.{task}.dataset.test ({limit})")
        return faults


class ConfigError(ValueError):
    """`params.yaml` is not valid; the message lists every fault with its dotted key, its value and the rule."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice and reads `1e-3` as a number, as DVC does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_UniqueKeyLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse(text: str, origin: str = "params.yaml") -> Params:
    """Validate the text of a params file.

    Args:
        text: YAML.
        origin: What the messages call the file.

    Raises:
        ConfigError: If anything is wrong; all faults at once, each as `dotted.key = value: rule`.
    """
    loader = _UniqueKeyLoader(text)
    try:
        raw = loader.get_single_data()  # as `yaml.safe_load`, by a safe loader of our own
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin}: not valid YAML; nothing was run\n  {error}") from error
    finally:
        loader.dispose()
    if not isinstance(raw, dict):
        raise ConfigError(f"{origin}: must hold a mapping of sections, not {type(raw).__name__}; nothing was run")
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        lines: list[str] = []
        for fault in error.errors():
            key = ".".join(_places(fault["loc"]))
            message = fault["msg"].removeprefix("Value error, ")
            if not key:
                lines += message.splitlines()
            elif isinstance(fault["input"], dict):
                lines.append(f"{key}: {message}")
            else:
                lines.append(f"{key} = {fault['input']!r}: {message}")
        raise ConfigError("\n  ".join([f"{origin}: {len(lines)} invalid value(s); nothing was run", *lines])) from error


def target_settings(data: dict[str, Any]) -> TrainingSettings:
    """A target's settings as `model.json` keeps them.

    Raises:
        pydantic.ValidationError: If they are no target's.
    """
    found: TrainingSettings = TypeAdapter(AnyTarget).validate_python(data)
    return found


def dotted(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys, as `dvc exp run -S` names them."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _places(loc: tuple[int | str, ...]) -> list[str]:
    """The dotted key of a fault without what pydantic adds: marks in brackets, and the module that it took an explainer for."""
    union = len(loc) > 3 and loc[1] == "explainers" and loc[3] != "[key]"
    return [str(part) for part in (loc[:3] + loc[4:] if union else loc) if not str(part).startswith("[")]


def load(path: str | Path = "params.yaml") -> Params:
    """Read and validate a params file, or print every fault and exit with status 1."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"), str(path))
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        sys.exit(str(error))


def stage_arguments(*kinds: Literal["task", "method", "explainer", "judged"]) -> tuple[Params, list[str]]:
    """The params and the names that a stage script is started with.

    Exits with status 1 and one line if the number of names is wrong or the params do not know one of them.

    Args:
        kinds: What each command-line argument names; the task comes first.
    """
    names = sys.argv[1:]
    if len(names) != len(kinds):
        sys.exit(f"usage: python {sys.argv[0]} {' '.join(kind.upper() for kind in kinds)}")
    params = load()
    for kind, name in zip(kinds, names, strict=True):
        if kind == "task":
            known: Methods | list[str] | dict[str, TaskSettings] | dict[str, ExplainerSettings] = params.tasks
        elif kind == "method":
            known = params.modality(names[0]).methods
        elif kind == "judged":
            known = [*params.fud.image.methods, *params.fud.image.explainers, "controls"]
        else:
            known = params.modality(names[0]).explainers
        if name not in known:
            there = known.names() if isinstance(known, Methods) else known
            sys.exit(f"error: no {kind} {name!r} in params.yaml; there are: {', '.join(there)}")
    return params, names


if __name__ == "__main__":
    load(*sys.argv[1:2])
    print(f"{(sys.argv[1:2] or ['params.yaml'])[0]}: valid")
