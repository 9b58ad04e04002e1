"""Speed of FUD's sampler: one stream of (image, mask) in batches, beside the loop of published code, one image at a time.

    PYTHONPATH=src python benchmarks/fud.py

The score model is that of params.yaml (untrained: weights change no time), images have the size of digits, half of the pixels are
kept. The peer is diffusers' DDPMScheduler stepping one image at a time, with the kept pixels put back after each step. Both sides
take denoising steps only, with the same network; times are the least of several, the sides take turns.
"""

from dataclasses import replace

import torch
from diffusers import DDPMScheduler
from torch import Tensor

from faithline import config, fud, fud_sampling
from faithline.diffusion.plan import cost, plan
from faithline.diffusion.presets import PAPER
from faithline.diffusion.schedule import linear_schedule
from faithline.diffusion.score import NetworkScore
from faithline.diffusion.training import build_network
from turns import least_seconds

SIDE, IMAGES, LEVELS, STEPS, REPEATS = 28, 8, 9, 10, 3


def measure() -> dict[str, dict[str, object]]:
    """How many times faster a stream of batches is than a loop over images, and milliseconds of one reconstruction."""
    settings = config.load().fud.image
    levels = settings.score_model.schedule
    schedule = linear_schedule(levels.steps, levels.first, levels.last)
    torch.manual_seed(0)
    network = build_network(settings.score_model, 1, SIDE)
    pixels, keep = torch.rand(IMAGES, 1, SIDE, SIDE), torch.rand(IMAGES, LEVELS, 1, SIDE, SIDE) < 0.5
    scene = fud.Scene(
        pixels=pixels,
        image_ids=tuple(range(IMAGES)),
        targets=torch.zeros(IMAGES, dtype=torch.int64),
        model=NetworkScore(network, torch.float32),
        schedule=schedule,
        evidence=None,
        seed=0,
        max_batch=IMAGES * LEVELS,
    )
    chain = replace(PAPER, denoising_steps=STEPS, variance="fixed_small", scale=0.0)
    scheduler = DDPMScheduler(
        num_train_timesteps=levels.steps, beta_start=levels.first, beta_end=levels.last, timestep_spacing="linspace"
    )
    scheduler.set_timesteps(STEPS)

    def ours() -> Tensor:
        return fud.regenerate(scene, keep, chain, 1).pixels

    @torch.no_grad()
    def one_by_one() -> Tensor:
        made = []
        for image in range(IMAGES):
            for level in range(LEVELS):
                clean, kept = 2 * pixels[image : image + 1] - 1, keep[image, level][None]
                x = torch.where(kept, clean, torch.randn_like(clean))
                for t in scheduler.timesteps:
                    x = scheduler.step(network(x, t, return_dict=False)[0], t, x, return_dict=False)[0]
                    x = torch.where(kept, clean, x)
                made.append(x)
        return torch.cat(made)

    stream, loop = least_seconds(ours, one_by_one, repeats=REPEATS)
    calls = cost(plan(fud_sampling.preset_of(settings.sampler), schedule)).calls
    per_call = stream / (IMAGES * LEVELS * STEPS)
    return {
        "fud_stream": {
            "ratio": loop / stream,
            "ours": stream,
            "peer": loop,
            "unit": f"s for {IMAGES * LEVELS} reconstructions of {STEPS} steps",
            "peer_name": "diffusers DDPMScheduler, one image at a time",
            "our_calls": IMAGES * LEVELS * STEPS,
            "peer_calls": IMAGES * LEVELS * STEPS,
        },
        "fud_reconstruction": {
            "ratio": 1.0 / calls,
            "ours": 1e3 * per_call * calls,
            "peer": 1e3 * per_call,
            "unit": "ms for one reconstruction by the sampler of params.yaml, the anti-class term left out",
            "peer_name": "one call of the score model",
        },
    }


if __name__ == "__main__":
    for name, entry in measure().items():
        print(name, entry)
