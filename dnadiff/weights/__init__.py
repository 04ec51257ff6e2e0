"""Weights of models: checkpoints of runs, exported folders, published weights and the Hub."""
