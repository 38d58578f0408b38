"""The built-in language: a seeded grammar, its sentences, its verb-final counterpart, and labelled examples of it."""
