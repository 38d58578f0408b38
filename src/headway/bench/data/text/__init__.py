"""Running text in any format as documents, and tokenizers trained on it."""
