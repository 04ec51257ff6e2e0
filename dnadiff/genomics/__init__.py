"""What a genome can be asked with a model: scores, tracks."""
