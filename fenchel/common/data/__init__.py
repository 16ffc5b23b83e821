"""Data sets, data files and partitions, from a public source to the shard of a client."""
