"""Rewards for designs: composition, motifs, restriction sites, predictions of fine-tuned models,
and weighted sums of these."""
