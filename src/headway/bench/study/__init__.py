"""Studies: the papers' tables as plans, a runner that never does a job twice, and honest statistics.

Kept empty: every job is a process, and imports only what it needs.
"""
