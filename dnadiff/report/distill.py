"""The page of `distill`: that of the training of the student."""

from dnadiff.report.train import page

__all__ = ["page"]
