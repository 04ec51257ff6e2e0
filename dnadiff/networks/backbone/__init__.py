"""Networks with one contract (`base`): token ids in, features and raw logits out."""
