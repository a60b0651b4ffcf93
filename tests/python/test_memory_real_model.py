"""Compact memories of the first layers of a real model: what the fit gains, and what foreign traces cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lazyrope import memory

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from tests.conftest import HAS_GPU
from tests.support.serving import make_engine
from tools.memory.texts import text_of
from tools.rag.model import find_gguf, load_smollm2

pytestmark = pytest.mark.skipif(HAS_GPU, reason="the figures are those of fp32 on a CPU")

CACHE = Path(__file__).parents[2] / "build" / "rag"
LAYERS = 2


@pytest.fixture(scope="module")
def model_and_tokenizer() -> tuple[Any, Any]:
    try:
        find_gguf()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    model, tokenizer = load_smollm2(torch.float32, "cpu", cache=CACHE)
    model.model.layers = model.model.layers[:LAYERS]
    model.config.num_hidden_layers = LAYERS
    return model, tokenizer


def test_the_fit_and_the_traces_decide_the_error(model_and_tokenizer):
    model, tokenizer = model_and_tokenizer
    engine = make_engine(model, tokenizer=tokenizer, budget="32MiB", memories=True)
    text, other = (text_of(kind, tokenizer, 0, 256, 384, 96) for kind in ("ICL", "code"))

    def errors(traces: list[int], **arguments: Any) -> memory.Audit:
        found = memory.build(engine, text.prefix, [traces], budget=48, **arguments)
        assert found.num_layers == LAYERS and 0 < found.num_bytes < 0.2 * found.report.exact_bytes
        queries = engine.record(text.test, [text.prefix])
        source = memory.traces.source_of(engine, text.prefix, [text.test])
        return memory.Drift(found, factor=1e9).audit(queries, [*zip(source.keys, source.values, strict=True)])

    fitted, unfitted, foreign = errors(text.traces), errors(text.traces, fit="none"), errors(other.traces)
    print(fitted, unfitted, foreign)
    assert fitted.output_error < 0.7 * unfitted.output_error and fitted.lse_error < 0.3 * unfitted.lse_error
    assert fitted.output_error < 0.9 * foreign.output_error
    assert fitted.output_error < 3 * fitted.held_out_output_error
