"""File formats: one reader for each, used by training data and by every input of a command."""
