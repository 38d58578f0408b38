"""The report of a study: a table on the terminal, a page, and tables for papers, made from results.json alone."""

from headway.bench.report.study.report import report_study

__all__ = ["report_study"]
