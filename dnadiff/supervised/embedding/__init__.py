"""Features of sequences: how they are computed (`features`), pooled (`pooling`) and stored
(`files`)."""
