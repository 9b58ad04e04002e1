"""Removing features in distribution: a diffusion model regenerates what a mask takes away."""
