"""The report on one model's positions: page and figures."""
