"""Each level of recovery on a real model and a short question, beside the slow reference and an ordinary prefill."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="pip install -r tools/requirements/rag.txt")

from lazyrope.transformers import Engine

from tests.conftest import HAS_GPU
from tests.support.recovery_levels import LEVELS, kl_divergence, reference_logits
from tests.support.serving import assert_near, make_engine
from tools.quality.reference import Reference
from tools.rag.model import find_gguf, load_smollm2

pytestmark = pytest.mark.skipif(HAS_GPU, reason="tests/gpu/test_recovery.py runs the levels on a GPU")

CACHE = Path(__file__).parents[2] / "build" / "rag"
SYSTEM = "You answer questions about the documents that follow.\n"
# The answer needs the first sentence of one document and the second one of another.
DOCUMENTS = [
    "The leader of the Basalt team is Greta Novak. She has led the team for six years and has written two handbooks of "
    "geology.\n",
    "Oskar Brandt works in the town of Merrow. The town has a harbour, a market and a school of music.\n",
    "Greta Novak works in the town of Lomond. The town has a mill, a museum of clocks and a long stone bridge.\n",
]
PROMPT = (
    "<|im_start|>user\nIn which town does the leader of the Basalt team work? Answer with the name alone.<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        find_gguf()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    model, tokenizer = load_smollm2(torch.float32, "cpu", cache=CACHE)
    return make_engine(model, tokenizer=tokenizer, budget="256MiB", recovery="prefix", prefix=SYSTEM)


def test_each_level_equals_the_reference_and_comes_nearer_to_an_ordinary_prefill(engine):
    """Logits before and after each token of the answer, in fp32."""
    reference = Reference(engine.model)
    documents = [engine._encode("documents", text) for text in DOCUMENTS]
    question, answer = (engine._encode("prompt", text) for text in (PROMPT, "Lomond"))
    prompt, count = [*question, *answer], len(answer) + 1
    whole = [*engine.recovery.prefix, *(token for tokens in documents for token in tokens), *prompt]
    full = reference.full(whole)[0][-count:]
    scored = {"num_logits": count, "question_length": len(question)}
    assert_near(engine.score(prompt, documents, mode="full", **scored).logits, full)
    divergence = {}
    for level, options in LEVELS.items():
        scores = engine.score(prompt, documents, recovery=level, **options, **scored)
        recovery = engine.recovery.changed(level, **options)
        exact = reference_logits(reference, prompt, documents, recovery, scores.recomputed)
        assert_near(scores.logits, exact[-count:])
        divergence[level] = kl_divergence(full, scores.logits)
    print(divergence)
    assert all(divergence[level] < 0.8 * divergence["none"] for level in LEVELS if level != "none")
    everything = engine.score(prompt, documents, recovery="first_page", overlay_tokens=1000, **scored)
    assert_near(everything.logits, full)
