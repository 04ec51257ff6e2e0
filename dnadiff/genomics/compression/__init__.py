"""Lossless compression: arithmetic coding with a model, and the container format."""
