"""Work that survives a kill: jobs, their journals, shards and merging."""
