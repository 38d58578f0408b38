"""The bench: data, training, measuring, the papers' plans, their claims, and pages about all of it."""
