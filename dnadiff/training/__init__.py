"""Training: the LightningModule, callbacks, the optimizer, and resuming a run."""
