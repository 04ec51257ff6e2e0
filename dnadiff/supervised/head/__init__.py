"""Heads of sequence classifiers: from the features of all positions to the outputs of a sequence,
one small file each."""
