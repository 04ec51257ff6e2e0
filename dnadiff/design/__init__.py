"""Sequence design: requests, templates, constraints, conditional generation and output files."""
