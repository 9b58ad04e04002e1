"""Infidelity: does a map predict how far the output falls when the image is perturbed?

Perturbations depend on the image only: their falls are measured once and serve every map. captum does the algebra.
"""

from typing import Literal

import torch
from captum.metrics import infidelity as captum_infidelity
from torch import Tensor

from faithline.metrics.responses import pixel_maps
from faithline.seeding import torch_generator

Meaning = Literal["per_unit", "contribution"]
"""What a map says of a channel value: how the output changes with it (a gradient), or what it adds to black (IG, Shapley)."""


def noisy_baseline_images(
    images: Tensor, image_ids: tuple[int, ...], samples: int, *, std: float, share: float, seed: int
) -> Tensor:
    """A random share of the pixels falls to black with Gaussian noise, cut to [0, 1].

    Args:
        images: In [0, 1], (I, C, H, W).
        image_ids: Id of each image: it names its draws.
        samples: Perturbed versions of each image, K >= 2.
        std: Of the noise; the authors take 0.2.
        share: Of the pixels that are perturbed, in (0, 1]; 1 is the formula of the paper.
        seed: Root seed.

    Returns:
        (I, K, C, H, W), in [0, 1].

    Raises:
        ValueError: If a value is out of range.

    Source:
        Yeh et al., NeurIPS 2019, section 2 (noisy baseline).
    """
    _check(images, image_ids, samples)
    if not std > 0 or not 0 < share <= 1:
        raise ValueError(f"std is {std}, share is {share}: a positive number and one in (0, 1] expected")
    height, width = images.shape[2:]
    count = max(1, round(share * height * width))
    versions = []
    for image, image_id in zip(images.cpu(), image_ids, strict=True):
        generator = torch_generator(seed, "infidelity", "noise", image_id)
        chosen = torch.rand(samples, height * width, generator=generator).argsort(1).argsort(1) < count
        noise = (std * torch.randn(samples, *image.shape, generator=generator)).clamp(0, 1)
        versions.append(torch.where(chosen.reshape(samples, 1, height, width), noise, image))
    return torch.stack(versions).to(images.device)


def square_removal_images(
    images: Tensor, image_ids: tuple[int, ...], samples: int, *, sides: tuple[int, ...], seed: int
) -> Tensor:
    """A square somewhere in the image becomes black.

    Args:
        images: In [0, 1], (I, C, H, W).
        image_ids: Id of each image: it names its draws.
        samples: Perturbed versions of each image, K >= 2.
        sides: Sides of squares in pixels; each version takes one of them, and a place inside the picture, all equally likely.
        seed: Root seed.

    Returns:
        (I, K, C, H, W), in [0, 1].

    Raises:
        ValueError: If a square does not fit or a value is out of range.

    Source:
        Yeh et al., NeurIPS 2019, section 2 (square removal).
    """
    _check(images, image_ids, samples)
    height, width = images.shape[2:]
    if not sides or not all(1 <= side <= min(height, width) for side in sides):
        raise ValueError(f"sides are {sides}: 1 ... {min(height, width)} expected")
    rows, columns = torch.arange(height), torch.arange(width)
    versions = []
    for image, image_id in zip(images.cpu(), image_ids, strict=True):
        generator = torch_generator(seed, "infidelity", "square", image_id)
        side = torch.tensor(sides)[torch.randint(len(sides), (samples,), generator=generator)]
        place = torch.rand(2, samples, generator=generator, dtype=torch.float64)
        top, left = ((place[axis] * (length - side + 1)).long() for axis, length in ((0, height), (1, width)))
        inside_row = (rows >= top[:, None]) & (rows < (top + side)[:, None])
        inside_column = (columns >= left[:, None]) & (columns < (left + side)[:, None])
        square = inside_row[:, None, :, None] & inside_column[:, None, None, :]
        versions.append(torch.where(square, 0.0, image))
    return torch.stack(versions).to(images.device)


def infidelity(
    attribution: Tensor, meaning: Meaning, images: Tensor, perturbed: Tensor, falls: Tensor, *, normalize: bool
) -> Tensor:
    """Mean squared difference between what a map predicts and what the output does: E[(I . A - (f(x) - f(x - I)))^2].

    For a map of contributions the perturbation is counted as the share of the value that goes, I / x, so that a whole removal
    costs the whole contribution; a value that is black already has nothing to lose, and its share is 0.

    Args:
        attribution: Maps, signed, (I, h, w) or (I, C, h, w).
        meaning: What they say.
        images: The clean images, (I, C, H, W).
        perturbed: x - I, (I, K, C, H, W), K >= 2.
        falls: f(x) - f(x - I), (I, K).
        normalize: Multiply each map by beta = E[I . A (f(x) - f(x - I))] / E[(I . A)^2] first: then its scale does not matter.
            A map that predicts nothing (all zero) gets E[(f(x) - f(x - I))^2], the value of saying 0.

    Returns:
        float64 (I,), lower = better, in squared units of the output.

    Raises:
        ValueError: If shapes do not fit, or a map or a fall is not finite.

    Source:
        Yeh et al., NeurIPS 2019, definition 2.1; beta as in the authors' code.
    """
    count, samples = perturbed.shape[:2]
    if perturbed.shape != (count, samples, *images.shape[1:]) or samples < 2 or falls.shape != (count, samples):
        raise ValueError(
            f"images {tuple(images.shape)}, perturbed {tuple(perturbed.shape)}, falls {tuple(falls.shape)}: (I, C, H, W), "
            "(I, K, C, H, W) and (I, K) expected, K at least 2"
        )
    if not bool(falls.isfinite().all()):
        raise ValueError(f"falls: {int((~falls.isfinite()).sum())} values are not finite")
    channels, height, width = images.shape[1:]
    maps = pixel_maps(attribution, (channels, height, width))
    clean, versions = images.double(), perturbed.double().flatten(0, 1)

    def perturb(repeated: Tensor) -> tuple[Tensor, Tensor]:
        change = repeated - versions
        if meaning == "contribution":
            change = torch.where(repeated == 0, 0.0, change / repeated)
        return change, versions

    # captum asks for f of all versions, then for f of the clean images; only differences count, so f(x) = 0 here.
    answers = {len(versions): -falls.double().flatten(), count: falls.new_zeros(count, dtype=torch.float64)}
    return captum_infidelity(
        lambda shown: answers[len(shown)], perturb, clean, maps, n_perturb_samples=samples, normalize=normalize
    )


def _check(images: Tensor, image_ids: tuple[int, ...], samples: int) -> None:
    if images.ndim != 4 or len(images) != len(image_ids) or samples < 2:
        raise ValueError(
            f"images {tuple(images.shape)}, {len(image_ids)} ids, {samples} samples: (I, C, H, W), I and at least 2 expected"
        )
