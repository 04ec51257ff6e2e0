"""Networks behind one contract: token ids in, features and raw logits out (`base`)."""
