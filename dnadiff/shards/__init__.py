"""The work of one command in several processes, on any machines: shards, their manifest, merging
and launching."""
