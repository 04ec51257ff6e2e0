"""Data for the models: files to records, letters to token ids, records to windows, windows to
batches."""
