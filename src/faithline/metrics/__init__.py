"""Faithfulness metrics: pure functions of curves, mask banks and maps."""
