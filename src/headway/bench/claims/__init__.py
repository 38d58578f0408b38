"""The ledger of the four papers' claims: what the committed results say about each, and a verdict by one rule."""
