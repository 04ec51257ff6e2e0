"""Genomes: FASTA, 2bit and GenBank files, regions, packed records, and the genome data modules."""
