"""Data sets, files, partitions: from a public source to the shard of one client."""
