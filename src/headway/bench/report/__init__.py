"""Pages and figures made from saved results alone: each page is one file that needs no network."""

try:
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("Pages need jinja2 and matplotlib: pip install 'headway[figures]'") from error

from headway.bench.report.analysis.figures import analysis_figures
from headway.bench.report.analysis.page import analysis_page

__all__ = ["analysis_figures", "analysis_page"]
