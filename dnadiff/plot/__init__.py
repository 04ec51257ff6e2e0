"""Figures of what the package writes and returns, as Matplotlib axes."""
