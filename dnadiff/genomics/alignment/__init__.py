"""Alignment of related genomes to a target: programs that align, and the job that makes the file of
`dnadiff.data.alignment`."""
