"""Sequences in front of the model: letters to ids, files to records, records to windows, windows to batches."""
