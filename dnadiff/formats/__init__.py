"""File formats: one reader for each, used by training data and by every input of a command."""

from dnadiff.formats import fasta, genbank, twobit  # formats of sequences, FASTA tried last

__all__ = ["fasta", "genbank", "twobit"]
