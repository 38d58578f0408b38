"""What the site has beside the pages in this folder: made from the library and the committed results, never typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from generate.api_pages import ROOMS, api_page
from generate.encoding_pages import encoding_page, index_page
from generate.pictures import drawn_encoding, drawn_patterns
from generate.plans import choices_table, plans_table
from mkdocs.structure.files import File

from headway.encodings import ENCODINGS

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:benchmarks/)?results/[\w./-]+)\)")


def on_config(config: Any) -> None:
    pages = [{name: f"encodings/{name}.md"} for name in ENCODINGS]
    config.nav.insert(2, {"Encodings": [{"All": "encodings/index.md"}, *pages]})
    config.nav.append({"API": [{f"headway.{room}": f"api/{room}.md"} for room in ROOMS]})


def on_files(files: Any, config: Any) -> None:
    made: dict[str, str | bytes] = {"encodings/index.md": index_page(), "encodings/patterns.svg": drawn_patterns()}
    made |= {f"encodings/{name}.md": encoding_page(name) for name in ENCODINGS}
    made |= {f"encodings/{name}.svg": drawn_encoding(name) for name in ENCODINGS}
    made |= {f"api/{room}.md": api_page(room) for room in ROOMS}
    made |= {
        str(path.relative_to(ROOT)): path.read_bytes() for path in (ROOT / "benchmarks" / "results").glob("*.json")
    }
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the tables of plans and of their choices, and mend links to committed results, which lie beside docs/.

    Files are part of the site; of a folder only the name is shown.
    """
    up = "../" * page.file.src_uri.count("/")

    def within(link: re.Match[str]) -> str:
        return f"[{link[1]}]({up}{link[2]})" if (ROOT / link[2]).is_file() else f"`{link[2]}` in the repository"

    for mark, table in (("<!-- plans -->", plans_table), ("<!-- choices -->", choices_table)):
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    return OUTSIDE.sub(within, markdown)
