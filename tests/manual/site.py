"""What mkdocs is helped with: pages from beside the manual, links, and pages for programs.

``python -m mkdocs build --strict -f tests/manual/mkdocs.yml`` reads this as a hook. Pages outside
the manual come in under a name of their own; a link to another file of the repository leads to a
copy of it. Each page lies as Markdown beside its HTML, and ``llms.txt`` lists them.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
MANUAL = "voiceloop/docs"
# Of the repository; the name in the site.
FROM_BESIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
    "NOTICE.md": "NOTICE.md",
    "benchmarks/RESULTS.md": "RESULTS.md",
    "benchmarks/LOG.md": "LOG.md",
    "engine/embedded/README.md": "AGENT_CARD.md",
}
NAMES = {name: beside for beside, name in FROM_BESIDE.items()}
TARGET = re.compile(r"""(?<=\]\()(?!https?:|mailto:)[^)\s#]+|(?<=srcset=")[^"]+|(?<=src=")[^"]+""")
_markdown: dict[str, str] = {}


def path_of(src_uri: str) -> str:
    """Where a page of the site lies in the repository."""
    return NAMES.get(src_uri, f"{MANUAL}/{src_uri}")


def name_in_site(path: str) -> str:
    """Of a file of the repository; what is no page is a copy under `files`."""
    if path in FROM_BESIDE:
        return FROM_BESIDE[path]
    inner = PurePosixPath(path)
    if inner.is_relative_to(MANUAL):
        return inner.relative_to(MANUAL).as_posix()
    return f"files/{path}" if inner.suffix == ".png" else f"files/{path}.txt"


def address_of(name: str) -> str:
    """What a page is called in the browser."""
    return name.lower().replace("_", "-")


def with_links(text: str, path: str) -> tuple[str, set[str]]:
    """The page with its links as the site has them, and which files of the repository they need."""
    needed: set[str] = set()

    def link(match: re.Match[str]) -> str:
        target = normpath(str(PurePosixPath(path).parent / match[0]))
        if (ROOT / target).is_dir():
            target = next(
                normpath(f"{target}/{one.name}") for one in sorted((ROOT / target).iterdir())
            )
        name = name_in_site(target)
        if name.startswith("files/") and (ROOT / target).is_file():
            needed.add(target)
        return relpath(name, ".")

    return TARGET.sub(link, text), needed


def on_files(files: Files, config: Any) -> Files:
    for name, beside in NAMES.items():
        files.append(File.generated(config, name, content=(ROOT / beside).read_text("utf-8")))
    copies: set[str] = set()
    for page in files.documentation_pages():
        text, needed = with_links(page.content_string, path_of(page.src_uri))
        _markdown[page.src_uri] = text
        copies |= needed
        page.dest_uri = address_of(page.dest_uri)
    for path in sorted(copies):
        name = name_in_site(path)
        files.append(File.generated(config, name, content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    return _markdown[page.file.src_uri]


def on_post_build(config: Any) -> None:
    """The pages for programs."""
    site = Path(config["site_dir"])
    for name, text in _markdown.items():
        pages = TARGET.sub(
            lambda link: address_of(link[0]) if link[0] in _markdown else link[0], text
        )
        (site / address_of(name)).write_text(pages, encoding="utf-8")
    lines = ["# VoiceLoop", "", f"> {config['site_description']}"]
    for section in config["nav"]:
        for title, pages in section.items():
            listed = pages if isinstance(pages, list) else [{title: pages}]
            lines += ["", f"## {title}", ""]
            for page in listed:
                [(name, src_uri)] = page.items()
                told = first_sentence(_markdown[src_uri])
                lines.append(f"- [{name}]({address_of(src_uri)}): {told}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def first_sentence(text: str) -> str:
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    paragraphs = (one.strip() for one in re.split(r"\n\s*\n", text))
    plain = next(one for one in paragraphs if one and one[0] not in "#|<!-")
    return re.split(
        r"(?<=[.!?])\s", " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain).split())
    )[0]
