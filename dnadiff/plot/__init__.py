"""Figures of what the package writes and returns, as Matplotlib axes.

from dnadiff import plot
axes = plot.logo(["TTGACA", "TTGACT"])
axes.figure.savefig("logo.svg")
"""

from dnadiff.plot.figures import designs, embedding, heat_map, logo, training

__all__ = ["designs", "embedding", "heat_map", "logo", "training"]
