"""Settings of all tests."""

import os

from hypothesis import settings

# Continuous integration tries the same examples every time; at a desk each run tries new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
