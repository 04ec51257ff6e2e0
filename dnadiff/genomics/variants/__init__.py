"""Effects of variants: what a model makes of an alternative allele, compared with that of the
reference genome."""
