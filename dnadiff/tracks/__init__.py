"""Files of values of each base along a genome; `dnadiff.likelihood.information` computes the
values."""
