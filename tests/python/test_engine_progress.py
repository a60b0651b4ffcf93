"""Long work of an engine on a CPU shows progress on a terminal, and nothing in a log or a pipe."""

from __future__ import annotations

import io
import sys

import pytest

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import progress

from tests.conftest import HAS_GPU
from tests.support.serving import make_engine, random_token_lists
from tools.rag.model import tiny_llama


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, **options: object) -> str:
    """Returns what a request of 130 tokens, in passes of at most 66, writes to stderr while its caller waits."""
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "DELAY", 0)
    engine = make_engine(tiny_llama(), max_pass_tokens=66, max_requests=1, **options)
    prompt, document = random_token_lists(9, 65, 65)
    generation = engine.generate(prompt, [document], max_new_tokens=5, stop=[])
    assert len(generation.result()) == 5
    return stderr.getvalue()


@pytest.mark.skipif(HAS_GPU, reason="bars are for CPUs")
def test_a_terminal_shows_the_layers_of_passes_and_the_tokens(monkeypatch):
    written = shown(monkeypatch, Terminal())
    assert "pass of 66 tokens" in written and "/2 [" in written and "layer" in written
    assert "generate" in written and "/5 [" in written and "token" in written


def test_a_pipe_shows_nothing(monkeypatch):
    assert shown(monkeypatch, io.StringIO()) == ""


def test_progress_can_be_wanted_or_not(monkeypatch):
    assert shown(monkeypatch, Terminal(), progress=False) == ""
    assert "generate" in shown(monkeypatch, io.StringIO(), progress=True)


@pytest.mark.skipif(HAS_GPU, reason="bars are for CPUs")
def test_streamed_tokens_have_no_bar(monkeypatch):
    """A bar between the pieces of a text would garble it."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "DELAY", 0)
    engine = make_engine(tiny_llama())
    assert len(list(engine.generate([1, 2, 3], max_new_tokens=5, stop=[]))) == 5
    assert terminal.getvalue() == ""
