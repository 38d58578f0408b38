"""GLUE, XTREME, SQuAD and their built-in counterparts: from public formats to labelled examples and tokens."""
