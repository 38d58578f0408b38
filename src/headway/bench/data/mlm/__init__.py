"""Documents to masked batches: packed rows in memory-mapped shards, drawn and masked by seed and step."""
