"""The engines of the arms. A process has one of them."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lazyrope.recovery import Recovery
from lazyrope.vllm.prompts import arguments

from tools.vllm_bench.cells import GIB
from tools.vllm_bench.load import Corpus, Output, Prompt

SHAPE = Path(__file__).parents[1] / "models" / "llama-3.1-8b.json"
TINY = {"hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "torch_dtype": "bfloat16"}
LAZYROPE = {"attention_backend": "CUSTOM", "worker_cls": "lazyrope.vllm.Worker"}
OPTIONS: dict[str, dict[str, Any]] = {
    "stock": {},
    "kernel": LAZYROPE,
    "copies": {
        "attention_backend": "CUSTOM",
        "scheduler_cls": "tools.vllm_bench.copies.Scheduler",
        "worker_cls": "tools.vllm_bench.copies.Worker",
    },
    "documents": LAZYROPE | {"scheduler_cls": "lazyrope.vllm.Scheduler"},
    "first_page": LAZYROPE | {"scheduler_cls": "lazyrope.vllm.Scheduler"},
}
# The recovery of requests, for the arms whose requests name their documents.
LEVELS = {"copies": Recovery(), "documents": Recovery(), "first_page": Recovery("first_page")}
OVERLAY_TOKENS = 4 * Recovery().overlay_tokens  # those of a request of five documents
TIMED = {"scheduler": ("schedule", "update_from_output"), "model_executor": ("execute_model", "sample_tokens")}


@dataclass(frozen=True)
class Setup:
    """The sizes of the model, of the documents and of the engine.

    Attributes:
        tiny: True: a tiny model, for a run on the CPU that checks the program. Its times say nothing.
        documents: The documents of the corpus.
        document_tokens: The tokens of a document.
        context: The mean context of the load "decode".
        answer: The longest answer.
        pool_gib: The KV cache of the engine, in GiB. Smaller budgets hold back blocks of it.
        block_size: The slots of a block.
        max_requests: The most requests at a time.
        max_tokens: The most tokens of a pass.
        eager: True: no CUDA graphs and no torch.compile.
        ranks: The GPUs among which the model is divided.
        weights: The folder of a saved model. Empty: a model of random weights, which are other ones on each rank.
    """

    tiny: bool = False
    documents: int = 100
    document_tokens: int = 2048
    context: int = 4096
    answer: int = 256
    pool_gib: float = 68.0  # 128 requests of 4k context and their answers
    block_size: int = 32
    max_requests: int = 128
    max_tokens: int = 8192
    eager: bool = False
    ranks: int = 1
    weights: str = ""

    @property
    def config(self) -> dict[str, Any]:
        if self.weights:
            return json.loads(Path(self.weights, "config.json").read_text())  # type: ignore[no-any-return]
        shape: dict[str, Any] = json.loads(SHAPE.read_text())
        return shape | TINY if self.tiny else shape

    @property
    def block_bytes(self) -> int:
        """The bytes of a block in all layers, keys and values of 16 bits."""
        config = self.config
        head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        return 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim * self.block_size

    def blocks(self, gib: float) -> int:
        return int(gib * GIB) // self.block_bytes


class Arm:
    """A running engine: what tools.vllm_bench.load needs of it, and its KV budget.

    Attributes:
        name: The arm, a key of OPTIONS. It may become another arm with the same options, whose requests have another
            recovery.
        corpus: The documents.
        computed_tokens: The tokens that all passes have computed so far.
    """

    def __init__(self, name: str, setup: Setup) -> None:
        self.name, self.setup = name, setup
        self._llm = _start(name, setup)
        self._engine = self._llm.llm_engine
        core = self._engine.engine_core.engine_core
        self._scheduler, self._pool = core.scheduler, core.scheduler.kv_cache_manager.block_pool
        self._held: list[Any] = []
        self.computed_tokens = 0
        self._count(self._scheduler)
        self._host_seconds: defaultdict[str, list[float]] = defaultdict(list)  # one number for each call
        for part, names in TIMED.items():
            for each in names:
                self._time(getattr(core, part), each)
        self.corpus = Corpus(setup.documents, setup.document_tokens, setup.config["vocab_size"])

    def _count(self, scheduler: Any) -> None:
        """Counts the tokens of all passes. Those of a document that a request of its own computes count, too."""
        schedule: Callable[..., Any] = scheduler.schedule

        def counted(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self.computed_tokens += output.total_num_scheduled_tokens
            return output

        scheduler.schedule = counted

    def _time(self, owner: Any, name: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._host_seconds[name].append(time.perf_counter() - begin)

        setattr(owner, name, timed)

    @property
    def host_ms(self) -> dict[str, float]:
        """The mean milliseconds of the calls of each part of the engine since clear_host_times()."""
        return {name: 1e3 * sum(calls) / len(calls) for name, calls in self._host_seconds.items()}

    def clear_host_times(self) -> None:
        self._host_seconds.clear()

    def _parameters(self, prompt: Prompt, answer: int, **options: Any) -> Any:
        from vllm import SamplingParams

        level = LEVELS.get(self.name)
        extra = arguments(prompt.lengths, 0, level.level, level.overlay_tokens) if level is not None else {}
        greedy = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
        return SamplingParams(max_tokens=answer, extra_args=extra or None, **greedy, **options)

    def add(self, name: str, prompt: Prompt, answer: int) -> None:
        from vllm.sampling_params import RequestOutputKind

        params = self._parameters(prompt, answer, output_kind=RequestOutputKind.DELTA)
        self._engine.add_request(name, {"prompt_token_ids": prompt.tokens}, params)

    def answers(self, prompts: list[Prompt], answer: int) -> list[list[dict[int, float]]]:
        """Answers prompts together. Returns the two best tokens of each position with their log-probabilities.

        The first of the two is the answer's token.
        """
        params = [self._parameters(prompt, answer, logprobs=2) for prompt in prompts]
        asked = [{"prompt_token_ids": prompt.tokens} for prompt in prompts]
        results = self._llm.generate(asked, params, use_tqdm=False)
        return [_best(result.outputs[0]) for result in results]

    def step(self) -> list[Output]:
        return [
            Output(
                result.request_id,
                sum(len(output.token_ids) for output in result.outputs),
                result.num_cached_tokens or 0,
                result.finished,
            )
            for result in self._engine.step()
        ]

    @property
    def num_live(self) -> int:
        return len(self._scheduler.running)

    @property
    def copied_blocks(self) -> int:
        """The blocks that requests have copied since the engine started."""
        return getattr(self._scheduler, "copied_blocks", 0)

    def limit_requests(self, count: int) -> None:
        """Sets the most requests at a time."""
        # vLLM 0.32 has a limit of its own for the admission. In 0.26 it is that of the model runner.
        name = "max_num_active_reqs" if hasattr(self._scheduler, "max_num_active_reqs") else "max_num_running_reqs"
        setattr(self._scheduler, name, count)

    def most_private(self, gib: float) -> int:
        """Returns how many requests of the corpus fit into a budget if each has blocks of its own."""
        return int(self.setup.blocks(gib) * self.setup.block_size // _longest_prompt(self.setup))

    def end(self, open_requests: list[str]) -> None:
        """Ends all requests. Their documents stay in the cache."""
        self._engine.abort_request(open_requests)
        while self._scheduler.requests or self._engine.has_unfinished_requests():
            self._engine.step()
        for _ in range(3):  # passes that were queued with aborted requests
            self._engine.step()

    def clear(self, open_requests: list[str], gib: float) -> None:
        """Ends all requests, empties the cache, and holds back the blocks beyond a budget."""
        self.end(open_requests)
        self._pool.free_blocks(self._held)
        self._held = []
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM's cache cannot be emptied: a block is still in use")
        beyond = self._pool.get_num_free_blocks() - self.setup.blocks(gib)
        if beyond < 0:
            raise ValueError(f"a budget of {gib} GiB is given; the pool has {self.setup.pool_gib} GiB")
        self._held = self._pool.get_new_blocks(beyond)
        self.limit_requests(self.setup.max_requests)
        self.clear_host_times()


def engines(names: Sequence[str]) -> list[list[str]]:
    """Returns the arms that one engine can serve, engine after engine."""
    groups: list[list[str]] = []
    for name in names:
        same = next((group for group in groups if OPTIONS[group[0]] == OPTIONS[name]), None)
        if same is None:
            groups.append([name])
        else:
            same.append(name)
    return groups


def _best(output: Any) -> list[dict[int, float]]:
    rows = []
    for token, row in zip(output.token_ids, output.logprobs, strict=True):
        others = {other: entry.logprob for other, entry in row.items() if other != token}
        rows.append({token: row[token].logprob} | others)
    return rows


def _longest_prompt(setup: Setup) -> int:
    padded = -(-setup.document_tokens // setup.block_size) * setup.block_size
    return 5 * padded + 64 + setup.answer


def _start(name: str, setup: Setup) -> Any:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    from lazyrope.vllm import plugin
    from vllm import LLM

    options = OPTIONS[name]
    if options:
        plugin.register()
    return LLM(
        setup.weights or _folder_of(setup.config),
        load_format="auto" if setup.weights else "dummy",
        tensor_parallel_size=setup.ranks,
        skip_tokenizer_init=True,
        max_model_len=max(_longest_prompt(setup) + OVERLAY_TOKENS, setup.context + setup.answer),
        block_size=setup.block_size,
        num_gpu_blocks_override=setup.blocks(setup.pool_gib) + 1,  # vLLM keeps one for padding
        max_num_seqs=setup.max_requests,
        max_num_batched_tokens=setup.max_tokens,
        enable_prefix_caching=True,
        enforce_eager=setup.eager,
        seed=0,
        **options,
    )


def _folder_of(config: dict[str, Any]) -> str:
    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(config))
    return folder


def texts(arm: Arm, seed: int, count: int, tokens: int) -> list[Prompt]:
    """Returns prompts without documents."""
    rng = random.Random(seed)
    return [Prompt(arm.corpus.text(rng, tokens), []) for _ in range(count)]
