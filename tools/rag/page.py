"""The figures of ``python -m tools.rag`` for a reader: plain text for the terminal, and one HTML page with plots.

python -m tools.rag.page results.json page.html
"""

from __future__ import annotations

import argparse
import json
import sys
from html import escape
from pathlib import Path
from typing import Any

from tools.drawing import Drawing
from tools.rag import plots, tables

TITLE = "Answers from documents that move"
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1, h2, h3 { line-height: 1.2; }
h2 { margin-top: 3rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; font-size: 14px; margin: 1rem 0; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
figure { margin: 2rem 0; }
figure svg { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: 14px; }
.good, .bad { padding: 0.5rem 1rem; border-left: 4px solid #0072B2; background: #f2f6f9; }
.bad { border-color: #D55E00; background: #fbf1ea; }
dt { font-weight: 600; margin-top: 0.8rem; }
dd { margin: 0 0 0 1rem; white-space: pre-wrap; }
"""
EXPLANATION = """
A document's keys and values are computed without anything before it, so they are the same in every request and at
every position but for the rotation of the keys. Three ways to use that are compared. They have the same mask, and give
the same answers but for rounding.
"""
MODES = [
    (
        "lazy",
        "the request reads each document's one stored copy where it lies; the queries are turned instead of the keys",
    ),
    ("block", "the request gets a copy of its own, with the keys turned to their positions"),
    ("full", "the request computes its documents anew, and shares nothing"),
]
RIGHT = """
Documents and a text that follows them go through the model three times: in fp32 with transformers' own attention,
which is taken for the truth, in bf16 with the same attention, which shows what rounding alone does, and in bf16 through
lazyrope. The tokens of documents are counted apart from those of prompts, and of these apart are those behind documents
that were stored before, for another order, and those in contexts longer than the model was trained for. KL is the
divergence of the next token's distribution from that in fp32. Perplexity is of the text itself, where the context is no
longer than that.
"""


def fidelity_text(systems: dict[str, Any]) -> str:
    """
    Args:
        systems: what ``fidelity.Fidelity.summary`` gives.
    """
    return tables.fidelity(systems).text()


def serving_text(worth: dict[str, Any]) -> str:
    """
    Args:
        worth: what ``serving.measure`` gives.
    """
    return f"{tables.single(worth).text()}\n\n{tables.served(worth).text()}"


def write(result: dict[str, Any], path: Path) -> None:
    """One page that needs no other file.

    Args:
        result: what ``python -m tools.rag --json`` writes; "right" or "worth" may be missing.
        path: of the page.

    Raises:
        ImportError: there is no matplotlib.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html(result), encoding="utf-8")


def html(result: dict[str, Any]) -> str:
    parts = [
        f"<h1>{TITLE}</h1>",
        _about(result),
        f"<p>{EXPLANATION.strip()}</p>",
        _definitions(MODES),
        _times_of_a_cpu(result),
        _verdict(result),
    ]
    if "right" in result:
        parts += _right(result["right"])
    if "worth" in result:
        parts += _worth(result["worth"])
    head = f'<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n<title>{TITLE}</title>'
    body = "\n".join(part for part in parts if part)
    page = f"<head>\n{head}\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>"
    return f'<!DOCTYPE html>\n<html lang="en">\n{page}\n</html>\n'


def _about(result: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>\n" for name, value in tables.about(result)
    )
    return f"<table>\n<tbody>\n{rows}</tbody>\n</table>"


def _times_of_a_cpu(result: dict[str, Any]) -> str:
    if result.get("is_gpu"):
        return ""
    return (
        "<p><strong>There was no GPU:</strong> attention ran in plain PyTorch, with fewer tokens. Bytes, copies and "
        "hit rates mean what they say; times say nothing about lazyrope's kernels.</p>"
    )


def _verdict(result: dict[str, Any]) -> str:
    complaints = result.get("complaints", [])
    if complaints:
        return f'<div class="bad">\n<p><strong>Not as it should be:</strong></p>\n{_list(complaints)}\n</div>'
    checked = [name for name in ("right", "worth") if name in result]
    if not checked:
        return ""
    words = {
        "right": "lazy is as near to the fp32 model as bf16 allows, and no text parts from that of full mode where "
        "rounding cannot explain it",
        "worth": "lazy copied nothing"
        + (", and served at least as many requests as block" if result.get("is_gpu") else ""),
    }
    return f'<p class="good"><strong>As it should be:</strong> {"; ".join(words[name] for name in checked)}.</p>'


def _right(right: dict[str, Any]) -> list[str]:
    return [
        "<h2>Is it right?</h2>",
        f"<p>{RIGHT.strip()}</p>",
        _figure(plots.fidelity(right)),
        _table(tables.fidelity(right["systems"]), tables.about_right(right)),
        _divergences(right),
        _answers(right),
    ]


def _divergences(right: dict[str, Any]) -> str:
    apart = right["divergences"]
    found = (
        f"Of {right['requests']} questions, {right['requests'] - len(apart)} got the same text in lazy and full mode, "
        f"token by token. bf16 alone moves the distance between the two best logits by up to {right['noise']:.2f} "
        "(99% of tokens); texts may part only where that distance, in fp32, is less."
    )
    head = ["question", "texts part at token", "distance in fp32", "tokens (lazy, full)"]
    rows = [
        [d["question"], str(d["index"]), f"{d['margin']:.3f}", ", ".join(_token(t) for t in d["tokens"])] for d in apart
    ]
    listed = _table(tables.Table(head, rows)) if rows else ""
    return f"<h3>Where texts part</h3>\n<p>{found}</p>\n{listed}"


def _token(token: int) -> str:
    return "end" if token < 0 else str(token)


def _answers(right: dict[str, Any]) -> str:
    if not right["answers"]:
        return ""
    given = [(entry["question"], entry["answer"]) for entry in right["answers"]]
    note = "By a model of 135M parameters, so not always true: what counts is that the modes agree."
    return f"<h3>Some of its answers, in lazy mode</h3>\n<p>{note}</p>\n{_definitions(given)}"


def _worth(worth: dict[str, Any]) -> list[str]:
    return [
        "<h2>Is it worth it?</h2>",
        f"<p>The model: {escape(worth['model'])}. TTFT: time to the first token, from when the request is sent.</p>",
        "<h3>One request alone</h3>",
        _figure(plots.times(worth)),
        _figure(plots.memory(worth)),
        _table(tables.single(worth), tables.about_single(worth)),
        "<h3>Many clients under a budget</h3>",
        *(_figure(drawing) for drawing in plots.served(worth)),
        _table(tables.served(worth), tables.about_served(worth)),
    ]


def _figure(drawing: Drawing) -> str:
    return f"<figure>\n{drawing.svg}\n<figcaption>{escape(drawing.caption)}</figcaption>\n</figure>"


def _table(table: tables.Table, about: str = "") -> str:
    note = f"<p>{escape(about)}.</p>\n" if about else ""
    return f'{note}<div class="wide">\n{table.html()}\n</div>'


def _definitions(entries: list[tuple[str, str]]) -> str:
    inside = "".join(f"<dt>{escape(term)}</dt>\n<dd>{escape(text)}</dd>\n" for term, text in entries)
    return f"<dl>\n{inside}</dl>"


def _list(entries: list[str]) -> str:
    return "<ul>\n" + "".join(f"<li>{escape(entry)}</li>\n" for entry in entries) + "</ul>"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.rag.page", description="Makes the page from recorded figures."
    )
    parser.add_argument("results", type=Path, metavar="FILE.json", help="written by python -m tools.rag --json")
    parser.add_argument("page", type=Path, metavar="FILE.html", help="to be written")
    options = parser.parse_args(arguments)
    write(json.loads(options.results.read_text()), options.page)
    print(f"page: {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
