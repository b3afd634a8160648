"""A hook of MkDocs: what pages link to outside of docs/ becomes part of the site, below repository/."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
CODE = re.compile(r"(```.*?```)", re.S)
OUTSIDE = "repository"
"""The folder of the site for files that are not in docs/."""


def in_site(path: str) -> str:
    """Where a path of the repository is in the site's sources; a folder is its list of files.

    >>> in_site("docs/log.md"), in_site("examples/backbone.py"), in_site("docs/results")
    ('log.md', 'repository/examples/backbone.py', 'results/index.md')
    """
    place = path.removeprefix("docs/") if path.startswith("docs/") else f"{OUTSIDE}/{path}"
    return f"{place}/index.md" if (ROOT / path).is_dir() else place


def in_repository(uri: str) -> str:
    """The opposite, of a page's source."""
    return uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else f"docs/{uri}"


def linked(markdown: str, page: str) -> list[str]:
    """The paths in the repository that a page, by its own path there, links to."""
    text = CODE.sub("", markdown)
    links = [link for _, link, _ in LINK.findall(text) if "://" not in link]
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in links]


def rewritten(markdown: str, page: str) -> str:
    """The page with its links as they are in the site.

    >>> rewritten("[a](../examples/backbone.py) [b](log.md#top) [c](results)", "docs/index.md")
    '[a](repository/examples/backbone.py) [b](log.md#top) [c](results/index.md)'
    """
    here = posixpath.dirname(in_site(page))

    def moved(found: re.Match[str]) -> str:
        before, link, after = found.groups()
        if "://" in link:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
        return f"{before}{posixpath.relpath(in_site(path), here or '.')}{after}"

    parts = CODE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def folder_page(path: str) -> str:
    """A list of the files in a folder of the repository."""
    names = sorted(own.name for own in (ROOT / path).iterdir() if own.is_file())
    return f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)


def on_files(files: Any, config: Any) -> Any:
    """Add what is linked, and what that links to in turn."""
    from mkdocs.structure.files import File

    waiting = [file for file in files if file.src_uri.endswith(".md")]
    while waiting:
        page = waiting.pop()
        for path in linked(page.content_string, in_repository(page.src_uri)):
            uri, source = in_site(path), ROOT / path
            if files.get_file_from_path(uri) or not source.exists():  # MkDocs warns of what does not exist
                continue
            given = {"content": folder_page(path)} if source.is_dir() else {"abs_src_path": str(source)}
            made = File.generated(config, uri, **given)
            files.append(made)
            if uri.endswith(".md"):
                waiting.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the site."""
    path = in_repository(page.file.src_uri)
    return rewritten(markdown, path) if (ROOT / path).exists() else markdown  # a folder's list has none to move
