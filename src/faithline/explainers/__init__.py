"""Amortised explainers: networks that explain in one forward pass."""
