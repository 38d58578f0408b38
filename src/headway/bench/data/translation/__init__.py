"""Parallel text in any format as pairs, a shared vocabulary, and batches by length with a token budget."""
