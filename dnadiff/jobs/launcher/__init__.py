"""Running all shards of a command, and merging them."""
