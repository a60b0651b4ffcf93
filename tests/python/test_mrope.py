"""Moves documents with images, whose tokens share positions (M-RoPE), and compares with transformers' own models.

An image's tokens have three positions: time, row and column. The text after it goes on from the greatest of them, so a
document has more tokens than positions. The model rotates queries and keys; a segment's base moves the rotation, and
its mask_base orders its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lazyrope
import pytest
import torch

transformers = pytest.importorskip("transformers")
from lazyrope import eager  # noqa: E402
from transformers import AttentionInterface  # noqa: E402

HEAD_DIM, Q_HEADS, KV_HEADS, LAYERS, THETA, PAGE = 64, 4, 2, 2, 1e4, 16
SIZES = {
    "hidden_size": Q_HEADS * HEAD_DIM,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": Q_HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": 16,
    "initializer_range": 0.15,  # so large that attention is far from uniform
}
MODELS = {
    "qwen2_5_vl": ("Qwen2_5_VLTextConfig", "Qwen2_5_VLTextModel", [8, 12, 12]),
    "qwen3_vl": ("Qwen3VLTextConfig", "Qwen3VLTextModel", [12, 10, 10]),
}
# A document is a list of texts (numbers of tokens) and images (rows and columns).
DOCUMENTS: list[list[int | tuple[int, int]]] = [[5, (4, 6), 7], [(3, 3), 9, (2, 5), 1]]
PROMPT = 6


@dataclass
class Piece:
    """Tokens that the model reads in one pass.

    Attributes:
        embeddings: Their embeddings, [tokens, hidden size].
        positions: Their positions in time, rows and columns, [3, tokens], from 0.
    """

    embeddings: torch.Tensor
    positions: torch.Tensor

    @property
    def num_positions(self) -> int:
        return int(self.positions.max()) + 1


def piece(parts: list[int | tuple[int, int]], generator: torch.Generator) -> Piece:
    columns, at = [], 0
    for part in parts:
        if isinstance(part, int):
            columns.append((at + torch.arange(part)).expand(3, -1))
            at += part
        else:
            rows, width = part
            row, column = torch.meshgrid(torch.arange(rows), torch.arange(width), indexing="ij")
            columns.append(at + torch.stack([torch.zeros_like(row), row, column]).flatten(1))
            at += max(part)
    positions = torch.cat(columns, dim=1)
    return Piece(torch.randn(positions.shape[1], SIZES["hidden_size"], generator=generator), positions)


def tiny_model(name: str) -> Any:
    config_name, model_name, sections = MODELS[name]
    module = __import__(f"transformers.models.{name}", fromlist=[config_name])
    rope = {"rope_type": "default", "rope_theta": THETA, "mrope_section": sections}
    config = getattr(module, config_name)(**SIZES, rope_parameters=rope)
    torch.manual_seed(1)
    return getattr(transformers, model_name)(config).float().eval()


def hidden_states(model: Any, embeddings: torch.Tensor, positions: torch.Tensor, **named: Any) -> torch.Tensor:
    with torch.no_grad():
        result = model(inputs_embeds=embeddings[None], position_ids=positions[:, None], use_cache=False, **named)
    return result.last_hidden_state[0]


def expected(model: Any, documents: list[Piece], prompt: Piece) -> torch.Tensor:
    """Returns the prompt's hidden states by eager attention over the whole sequence, whose documents are blocks."""
    pieces = [*documents, prompt]
    block = torch.cat([torch.full((p.positions.shape[1],), i) for i, p in enumerate(pieces)])
    order = torch.arange(len(block))
    is_prompt = block == len(documents)
    seen = (order[None] <= order[:, None]) & ((block[:, None] == block[None]) | is_prompt[:, None])
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    moved, at = [], 0
    for p in pieces:
        moved.append(p.positions + at)
        at += p.num_positions
    model.config._attn_implementation = "eager"
    embeddings = torch.cat([p.embeddings for p in pieces])
    return hidden_states(model, embeddings, torch.cat(moved, dim=1), attention_mask=mask)[is_prompt]


class Server:
    """Stores documents and reads them by lazyrope. The model calls it as its attention."""

    def __init__(self, model: Any, arch: str | None) -> None:
        self.model = model
        self.spec = lazyrope.AttentionSpec(
            head_dim=HEAD_DIM,
            num_q_heads=Q_HEADS,
            num_kv_heads=KV_HEADS,
            rope=lazyrope.rope.neox(THETA),
            query_form="rotated",
        )
        self.kernel = eager.compile(self.spec) if arch is None else lazyrope.compile(self.spec, arch=arch)
        self.dtype = torch.float32 if arch is None else torch.bfloat16
        shape = (LAYERS, 16, PAGE, KV_HEADS, HEAD_DIM)
        self.k_pool, self.v_pool = (torch.full(shape, torch.nan, dtype=self.dtype) for _ in "kv")
        self.pages = torch.arange(16, dtype=torch.int32)
        self.used = 0
        self.steps: tuple[Any, Any] | None = None

    def run(self, new: Piece, segments: list[lazyrope.Segment], base: int, order: int) -> lazyrope.Document:
        """Reads a piece after the segments, at a base of its positions and at a place in the order of the mask."""
        tokens = new.positions.shape[1]
        document = lazyrope.Document(self.used, tokens)
        self.used += -(-tokens // PAGE)
        own = lazyrope.Segment(document, base=0, mask_base=order)  # its keys have their own positions
        request = lazyrope.Request(range(order, order + tokens), [*segments, own])
        indptr, start, first = (torch.tensor(x, dtype=torch.int32) for x in ([0, tokens], [0], [document.first_page]))
        spans = lazyrope.TokenSpans(indptr, start, first)
        self.steps = (
            self.kernel.plan(lazyrope.batch([request], self.pages), page_size=PAGE),
            self.kernel.plan_append(spans, self.pages, capacity=lazyrope.AppendCapacity(tokens), page_size=PAGE),
        )
        self.model.config._attn_implementation = "lazyrope_mrope"
        self.hidden = hidden_states(self.model, new.embeddings, new.positions + base, server=self)
        return document

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        step, append = self.steps
        q, k, v = (x[0].transpose(0, 1).to(self.dtype).contiguous() for x in (q, k, v))
        self.kernel.append(k, v, self.k_pool[layer], self.v_pool[layer], append)
        out, _ = self.kernel(q, self.k_pool[layer], self.v_pool[layer], step)
        return out.float()[None]


def _attention(module: Any, q: Any, k: Any, v: Any, mask: Any, server: Server, **_: Any) -> tuple[Any, None]:
    return server.attend(module.layer_idx, q, k, v), None


AttentionInterface.register("lazyrope_mrope", _attention)


@pytest.mark.parametrize("arch", [None, "emu:sm_80"])
@pytest.mark.parametrize("name", MODELS)
def test_documents_with_images_are_read_at_other_positions(name, arch):
    if arch is not None and arch not in lazyrope.archs():
        pytest.skip("this build has no emulator")
    model = tiny_model(name)
    generator = torch.Generator().manual_seed(0)
    pieces = [piece(parts, generator) for parts in DOCUMENTS]
    prompt = piece([PROMPT], generator)
    server = Server(model, arch)
    stored = [server.run(p, [], base=0, order=0) for p in pieces]
    results = []
    for order in ([0, 1], [1, 0]):
        segments, base, place = [], 0, 0
        for i in order:
            segments.append(lazyrope.Segment(stored[i], base=base, mask_base=place))
            base += pieces[i].num_positions
            place += stored[i].num_tokens
        assert place > base + 20  # the images' tokens share positions
        server.run(prompt, segments, base, place)
        exact = expected(model, [pieces[i] for i in order], prompt)
        error = (server.hidden - exact).norm() / exact.norm()
        assert error < (1e-5 if arch is None else 4e-2)
        results.append(exact)
    assert (results[0] - results[1]).norm() / results[0].norm() > 0.2  # the order matters


@pytest.mark.parametrize("arch", [None, "emu:sm_80"])
def test_a_mask_base_needs_rotated_queries(arch):
    if arch is not None and arch not in lazyrope.archs():
        pytest.skip("this build has no emulator")
    spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=2, num_kv_heads=2, rope=lazyrope.rope.neox())
    kernel = eager.compile(spec) if arch is None else lazyrope.compile(spec, arch=arch)
    q, pool = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((1, 2, 64), (1, 16, 2, 64)))
    segment = lazyrope.Segment(lazyrope.Document(0, 4), base=0, mask_base=9)
    with pytest.raises(lazyrope.SpecError, match='mask_base with query_form = "raw"'):
        step = kernel.plan(lazyrope.batch([lazyrope.Request(13, [segment])], torch.zeros(1, dtype=torch.int32)))
        kernel(q, pool, pool.clone(), step)  # plain PyTorch refuses it here


def test_a_mask_base_must_fit_its_segment():
    pages = torch.zeros(1, dtype=torch.int32)
    segment = lazyrope.Segment(lazyrope.Document(0, 4), base=0, mask_base=2**31 - 4)
    with pytest.raises(lazyrope.SpecError, match=r"mask_base \+ start \+ length = 2147483648"):
        lazyrope.batch([lazyrope.Request(13, [segment])], pages)


def test_a_batch_without_a_mask_base_uploads_none():
    pages = torch.zeros(2, dtype=torch.int32)
    segments = [lazyrope.Segment(lazyrope.Document(0, 4), base=7), lazyrope.Segment(lazyrope.Document(1, 4), base=3)]
    assert "mask_base" not in lazyrope.batch([lazyrope.Request(13, segments)], pages)._values
    segments[1] = lazyrope.Segment(segments[1].document, base=3, mask_base=3)
    assert "mask_base" not in lazyrope.batch([lazyrope.Request(13, segments)], pages)._values
    segments[1] = lazyrope.Segment(segments[1].document, base=3, mask_base=11)
    assert lazyrope.batch([lazyrope.Request(13, segments)], pages)._values["mask_base"] == [7, 11]
