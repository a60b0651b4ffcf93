"""Asks vLLM's OpenAI-compatible server about documents by the client `openai`, and reads its metrics.

The scheduler runs in another process than the server, as in production. The tests make the metadata of an installed
lazyrope, by which vLLM finds the plug-ins, and a tokenizer of bytes with a chat template.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="make test-vllm")
pytest.importorskip("openai")

import lazyrope.vllm
import openai
import tokenizers
import transformers

from tests.support.serving import DTYPE, random_tokens
from tests.support.vllm_processes import write_metadata
from tools.rag.model import tiny_llama

ROOT = Path(__file__).parents[2]
BLOCK = 32
START = ["--attention-backend", "CUSTOM", "--scheduler-cls", "lazyrope.vllm.Scheduler"]
START += ["--worker-cls", "lazyrope.vllm.Worker", "--block-size", str(BLOCK), "--enforce-eager"]
START += ["--max-model-len", "1024", "--max-num-seqs", "4", "--served-model-name", "tiny"]
MARK = "<reserved_0>"
START += ["--additional-config", json.dumps({"lazyrope": {"document_token": MARK}})]
SPECIAL = ["<bos>", "<eos>", "<message>", MARK]
VOCABULARY = 1024 + len(SPECIAL)  # the special tokens come last: prompts of random tokens have none
TEMPLATE = "<bos>{% for m in messages %}<message>{{ m.role }}: {{ m.content }}{% endfor %}<message>assistant: "


def tokenizer_of_bytes() -> transformers.PreTrainedTokenizerFast:
    """Returns a tokenizer whose tokens are single bytes. The model's other tokens have texts as well."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*letters, *(f"token{i}" for i in range(len(letters), 1024)), *SPECIAL]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({text: i for i, text in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    result = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")
    result.chat_template = TEMPLATE
    return result


@dataclass(frozen=True)
class Serving:
    """A running server.

    Attributes:
        address: Its address.
        model: The folder of its model.
        command: The command of vLLM.
        environment: The variables with which the command finds lazyrope.
    """

    address: str
    model: Path
    command: list[str]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def serving(tmp_path_factory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("server")
    model = folder / "model"
    tiny_llama(dtype=DTYPE, vocab_size=VOCABULARY).save_pretrained(model)
    tokenizer_of_bytes().save_pretrained(model)
    metadata = folder / "metadata"
    metadata.mkdir()
    write_metadata(metadata)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [str(metadata), str(Path(lazyrope.__file__).parents[1]), str(ROOT)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_USE_V2_MODEL_RUNNER": os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "0"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    log = folder / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [
                *command,
                "serve",
                str(model),
                *START,
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--dtype",
                str(DTYPE).removeprefix("torch."),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            yield Serving(wait_for(server, f"http://127.0.0.1:{port}", log), model, command, environment)
        finally:
            server.terminate()
            server.wait(60)


@pytest.fixture(scope="module")
def address(serving: Serving) -> str:
    return serving.address


def wait_for(server: subprocess.Popen[bytes], address: str, log: Path) -> str:
    """Returns the address when the server answers."""
    end = time.monotonic() + 480
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5)
            return address
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"vLLM's server does not answer: {log.read_text()[-4000:]}")


def read_metrics(address: str) -> dict[str, float]:
    text = urllib.request.urlopen(f"{address}/metrics", timeout=30).read().decode()
    return {name: float(value) for name, value in re.findall(r"^lazyrope:(\w+)_total\{.*?\} (\S+)$", text, re.M)}


def counted_since(before: dict[str, float], address: str) -> dict[str, float]:
    return {name: count - before[name] for name, count in read_metrics(address).items()}


def complete(client: Any, documents: list[list[int]], question: list[int], **recovery: Any) -> list[int]:
    tokens, extra = lazyrope.vllm.prompt(None, documents, question, **recovery)
    more = {"vllm_xargs": extra, "return_token_ids": True, "ignore_eos": True}
    answer = client.completions.create(model="tiny", prompt=tokens, max_tokens=4, temperature=0, extra_body=more)
    return list(answer.choices[0].token_ids)


def test_the_openai_client_gets_answers_and_the_endpoint_counts(address):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    rng = random.Random(1)
    a, b = random_tokens(rng, 64), random_tokens(rng, 100)
    before = read_metrics(address)
    first = complete(client, [a, b], [1, 2, 3])
    assert len(first) == 4 and complete(client, [a, b], [1, 2, 3]) == first
    assert len(complete(client, [b, a], [1, 2, 3])) == 4
    with pytest.raises(openai.BadRequestError, match="20 tokens together, and the prompt has 10"):
        complete_wrongly(client)
    recovery = {"prefix": random_tokens(rng, BLOCK), "recovery": "first_page"}
    recovered = complete(client, [a, b], [1, 2, 3], **recovery)
    assert len(recovered) == 4 and complete(client, [a, b], [1, 2, 3], **recovery) == recovered
    time.sleep(0.5)  # the statistics come with the pass after the answer
    assert len(complete(client, [b], [4])) == 4
    assert counted_since(before, address) == {
        "documents": 13,
        "document_hits": 8,
        "document_fills": 0,
        "refused_requests": 0,
        "tokens_not_recomputed": (16 + 7) * BLOCK,
        "shifted_blocks": 10,
    }


def complete_wrongly(client: Any) -> None:
    more = {"vllm_xargs": {"lazyrope_documents": [20]}}
    client.completions.create(model="tiny", prompt=[3] * 10, max_tokens=4, extra_body=more)


MANUAL, LICENCE = "The pump starts at noon. " * 3, "Nothing may be copied. " * 4
SYSTEM, QUESTION = "Be brief.", "What is forbidden?"


def divided(*documents: str) -> str:
    return "".join(MARK + document for document in documents) + MARK


def chat(client: Any, content: str, **more: Any) -> Any:
    """Asks over the documents of a message. Answers are greedy."""
    return client.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}],
        max_tokens=4,
        temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True, **more.pop("extra_body", {})},
        **more,
    )


def parts_of_chat(*documents: str) -> tuple[list[int], list[list[int]], list[int]]:
    """Returns the tokens of the prefix, of the documents and of the question, as the template makes them."""
    encode = tokenizer_of_bytes().encode
    return (
        encode(f"<bos><message>system: {SYSTEM}<message>user: "),
        [encode(document) for document in documents],
        encode(f"{QUESTION}<message>assistant: "),
    )


@pytest.mark.parametrize("documents", [[MANUAL, LICENCE], []])
def test_a_chat_names_documents_by_the_document_token(address, documents):
    """The answer and the stored blocks are those of a prompt whose documents are counted."""
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    prefix, texts, question = parts_of_chat(*documents)
    expected = complete(client, [prefix, *texts], question)
    before = read_metrics(address)
    answer = chat(client, divided(*documents) + QUESTION)
    assert list(answer.choices[0].token_ids) == expected
    length = sum(map(len, (prefix, *texts, question)))
    assert answer.usage.prompt_tokens == length + len(texts) + 1, "the usage counts the prompt as it was sent"
    chunks = list(chat(client, divided(*documents[::-1]) + QUESTION, stream=True))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    streamed = [token for choice in choices for token in getattr(choice, "token_ids", None) or ()]
    assert streamed == complete(client, [prefix, *texts[::-1]], question)
    assert "".join(choice.delta.content or "" for choice in choices)
    assert len(complete(client, [prefix], [4])) == 4  # the statistics come with the pass after the answer
    counts = counted_since(before, address)
    assert counts["documents"] == 3 * len([prefix, *texts]) + 1 == counts["document_hits"]


def test_a_chat_may_have_a_level_of_recovery(address):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    prefix, texts, question = parts_of_chat(MANUAL, LICENCE)
    level = {"lazyrope_recovery": "first_page", "lazyrope_overlay_tokens": 8}
    answer = chat(client, divided(MANUAL, LICENCE) + QUESTION, extra_body={"vllm_xargs": level})
    expected = complete(client, texts, question, prefix=prefix, recovery="first_page", overlay_tokens=8)
    assert list(answer.choices[0].token_ids) == expected
    assert expected != complete(client, [prefix, *texts], question), "the level changes nothing"


def test_the_text_of_a_completion_has_document_tokens(address):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    encode = tokenizer_of_bytes().encode
    more = {"return_token_ids": True, "ignore_eos": True}
    text = divided(MANUAL, LICENCE) + QUESTION
    answer = client.completions.create(model="tiny", prompt=text, max_tokens=4, temperature=0, extra_body=more)
    assert list(answer.choices[0].token_ids) == complete(client, [encode(MANUAL), encode(LICENCE)], encode(QUESTION))


def test_a_chat_without_document_tokens_is_an_ordinary_prompt(address):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    before = read_metrics(address)
    answer = chat(client, MANUAL + QUESTION)
    assert len(answer.choices[0].token_ids) == 4
    assert len(complete(client, [[5] * BLOCK], [4])) == 4
    assert counted_since(before, address)["documents"] == 1


@pytest.mark.parametrize(
    ("content", "extra_args"),
    [(divided(MANUAL, "") + QUESTION, {}), (divided(MANUAL) + QUESTION, {"lazyrope_documents": [3]})],
)
def test_mistakes_with_the_document_token_end_one_request(address, content, extra_args):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.APIStatusError):
        chat(client, content, extra_body={"vllm_xargs": extra_args})
    assert len(chat(client, divided(MANUAL) + QUESTION).choices[0].token_ids) == 4


def test_the_benchmark_of_vllm_sends_documents(serving, tmp_path):
    """Its prompts are texts, so the document token divides them."""
    pytest.importorskip("pandas", reason="a dataset of the benchmark needs it: pip install 'vllm[bench]'")
    rng = random.Random(3)
    prompts = [divided(*rng.sample([MANUAL, LICENCE, SYSTEM], 2)) + QUESTION for _ in range(6)]
    dataset, result = tmp_path / "prompts.jsonl", tmp_path / "result.json"
    dataset.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    before = read_metrics(serving.address)
    options = {
        "--backend": "openai", "--endpoint": "/v1/completions", "--base-url": serving.address, "--model": "tiny",
        "--tokenizer": serving.model, "--dataset-name": "custom", "--dataset-path": dataset, "--num-prompts": 6,
        "--custom-output-len": 4, "--num-warmups": 0, "--result-filename": result,
    }  # fmt: skip
    flags = ["--skip-chat-template", "--ignore-eos", "--save-result", "--disable-tqdm"]
    arguments = [str(each) for pair in options.items() for each in pair] + flags
    subprocess.run([*serving.command, "bench", "serve", *arguments], env=serving.environment, check=True, timeout=300)
    figures = json.loads(result.read_text())
    assert figures["completed"] == 6 and figures["total_output_tokens"] == 24
    client = openai.OpenAI(base_url=f"{serving.address}/v1", api_key="none", max_retries=0)
    assert len(complete(client, [[5] * BLOCK], [4])) == 4  # the statistics come with the pass after the answer
    counts = counted_since(before, serving.address)
    assert counts["documents"] >= 2 * 6 + 1 and counts["refused_requests"] == 0
