"""Serves requests over stored documents: admission under the store's budget, passes of mixed work, streamed tokens.

An engine queues requests and runs them together. Each pass of the model computes new documents, prompts and the next
tokens of running requests.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from .._precomputed import Precomputed, positions_of
from .._trace import traced
from ..documents import Document, DocumentStore, StoreFull
from ..errors import SpecError
from ..recovery import Recovery
from .arguments import as_int, check, check_documents, end_ids, is_finite, is_text, stop_ids, token_ids
from .assessment import Assessment, Assessor, Sample, as_samples, check_options
from .backend import Backend
from .fifo_lock import FifoLock, device_lock
from .filling import documents_of_others, sees
from .generation import Generation, Scores
from .layout import MODES, RequestParts, check_recovers, fill_of
from .limits import check_positions
from .memories import check_measures, check_number, fill_memories, is_memory, readable
from .passes import Runner
from .progress import Progress
from .ranks import check_is_whole
from .work import Job, Work

Tensor = Any
# The most pairs of a question's token and a page that one pass measures. Each takes 4 bytes for each query head.
MAX_MASS_PAGES = 1 << 20


class Engine:
    """Serves requests with a model whose attention reads documents from a store.

    :func:`lazyrope.transformers.attach` makes it. All methods may be called from several threads. Passes run one at a
    time.

    Attributes:
        model: The model of transformers. It is not changed.
        store: The store with the pages of documents and of requests.
        tokenizer: The model's tokenizer, or None.
        backend: The arch of the attention: "sm_90a", "emu:sm_80" and so on, or "eager" (plain PyTorch).
        mode: The default mode of requests.
        recovery: The default level of recovery of requests, with its parameters.
        max_requests: The most requests that run at the same time.
        max_pass_tokens: The most tokens of one pass.
        max_model_len: The most positions of a request, or None if there is no limit.
    """

    def __init__(
        self,
        model: Any,
        store: DocumentStore,
        backend: Backend,
        *,
        tokenizer: Any = None,
        mode: str = "lazy",
        recovery: str = "none",
        prefix: str | Sequence[int] = (),
        overlay_tokens: int = 16,
        share: float = 0.15,
        question_tokens: int = 128,
        attention_temperature: float = 0.9,
        lse_scale: float = 0.9,
        select_layers: int | None = None,
        max_requests: int = 32,
        max_pass_tokens: int = 8192,
        cuda_graphs: bool = True,
        max_graph_tokens: int = 256,
        max_model_len: int | None = None,
        progress: bool | None = None,
    ) -> None:
        check("mode", mode, mode in MODES, f"one of {', '.join(MODES)}")
        check("max_requests", max_requests, max_requests >= 1, "at least 1")
        check("max_graph_tokens", max_graph_tokens, max_graph_tokens >= 0, "at least 0")
        check("max_pass_tokens", max_pass_tokens, max_pass_tokens > max_requests, "more than max_requests")
        is_count = max_model_len is None or (isinstance(max_model_len, int) and max_model_len >= 1)
        check("max_model_len", max_model_len, is_count, "an integer, at least 1")
        self.model = model
        self.store = store
        self.tokenizer = tokenizer
        self.mode = mode
        self.recovery = Recovery(
            recovery,
            tuple(self._encode("prefix", prefix)),
            overlay_tokens,
            share,
            question_tokens,
            attention_temperature,
            lse_scale,
            select_layers,
        )
        if recovery == "none" and self.recovery.prefix:
            raise SpecError(
                'prefix is given; recovery = "none" does not use it. Give another level, such as recovery="prefix", and'
                ' "none" to a request that needs no prefix'
            )
        check_recovers(mode, self.recovery)
        check_measures(store, self.recovery)
        self.max_requests = max_requests
        self.max_pass_tokens = max_pass_tokens
        self.max_model_len = max_model_len
        self.backend: str = backend.arch
        self._progress = Progress(progress, is_slow=store.device.type == "cpu")
        self._runner = Runner(
            model, backend, cuda_graphs=cuda_graphs, max_graph_tokens=max_graph_tokens, progress=self._progress
        )
        self._pass_lock = FifoLock()  # guards everything but the arrival of requests
        # Engines on one device run their passes one at a time, for work of one thread on a GPU may break the capture of
        # another thread. This also covers engines of one model.
        self._device_lock = device_lock(store.device)
        self._arrivals = threading.Lock()  # guards the queue: a thread may append while another one searches it
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._filling: dict[Document, Job] = {}

    def __repr__(self) -> str:
        return (
            f"Engine(model={type(self.model).__name__}, backend={self.backend!r}, mode={self.mode!r}, "
            f"recovery={self.recovery.level!r}, num_running={self.num_running}, num_waiting={self.num_waiting}, "
            f"store={self.store!r})"
        )

    def generate(
        self,
        prompt: str | Sequence[int],
        documents: Sequence[str | Sequence[int] | Precomputed] = (),
        *,
        max_new_tokens: int = 128,
        mode: str | None = None,
        recovery: str | None = None,
        prefix: str | Sequence[int] | None = None,
        overlay_tokens: int | None = None,
        share: float | None = None,
        attention_temperature: float | None = None,
        lse_scale: float | None = None,
        temperature: float = 0.0,
        stop: Sequence[int] | None = None,
        salt: str = "",
    ) -> Generation:
        """Queues a request.

        Iterate over the result to get tokens as they are generated. All queued requests run together, whichever of
        them is iterated over.

        Args:
            prompt: The request's own text, at least one token: token ids, or text if the engine has a tokenizer. Text
                is encoded without a chat template and without special tokens.
            documents: The documents that the prompt sees, in this order, each as token ids or text. Empty documents are
                ignored. With ``memories`` of :func:`lazyrope.transformers.attach`, also memories of that kind
                (:mod:`lazyrope.memory`), in mode "lazy" with recovery "none".
            max_new_tokens: The most tokens that are generated.
            mode: "lazy", "block", "recompute" or "full", as in :func:`lazyrope.transformers.attach`. The default is
                the engine's mode.
            recovery: "none", "prefix", "first_page", "guided" or "ape", as in :func:`lazyrope.transformers.attach`. The
                default is the engine's level.
            prefix: The tokens, or the text, before each document when it is computed. The default is the engine's. A
                request with recovery "none" has no prefix, so an engine's system prompt must then be in the prompt.
            overlay_tokens: The first tokens of documents that "first_page" and "guided" compute again. The default is
                the engine's number.
            share: The share of the documents' tokens that "guided" computes again. The default is the engine's.
            attention_temperature: The temperature of attention to documents at level "ape". The default is the
                engine's.
            lse_scale: The factor of the documents' log-sum-exp at level "ape". The default is the engine's.
            temperature: 0: the most probable token. Otherwise a sample of softmax(logits / temperature).
            stop: The token ids that end the text. The default is the model's end-of-sequence ids.
            salt: A text that separates its documents from those of other salts, for example of other tenants.

        Returns:
            The generation.

        Raises:
            SpecError: A value is not allowed.
        """
        count = as_int(max_new_tokens) or 0
        check("max_new_tokens", max_new_tokens, count >= 1, "an integer, at least 1")
        check("temperature", temperature, is_finite(temperature) and temperature >= 0, "a number, at least 0")
        max_new_tokens, temperature = count, float(temperature)
        ends = stop_ids(end_ids(self.model) if stop is None else stop)
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "stop": ends}
        how = self._recovery(recovery, prefix, overlay_tokens, share, attention_temperature, lse_scale)
        return self._queue(prompt, documents, mode, how, salt=salt, **options)

    def score(
        self,
        prompt: str | Sequence[int],
        documents: Sequence[str | Sequence[int] | Precomputed] = (),
        *,
        mode: str | None = None,
        recovery: str | None = None,
        prefix: str | Sequence[int] | None = None,
        overlay_tokens: int | None = None,
        share: float | None = None,
        attention_temperature: float | None = None,
        lse_scale: float | None = None,
        num_logits: int = 0,
        question_length: int | None = None,
        salt: str = "",
    ) -> Scores:
        """Runs tokens through the model, generates none, and returns the hidden state of each.

        Args:
            prompt: The request's own text, as in :meth:`generate`.
            documents: The documents that the prompt sees, as in :meth:`generate`.
            mode: As in :meth:`generate`.
            recovery: As in :meth:`generate`.
            prefix: As in :meth:`generate`.
            overlay_tokens: As in :meth:`generate`.
            share: As in :meth:`generate`.
            attention_temperature: As in :meth:`generate`.
            lse_scale: As in :meth:`generate`.
            num_logits: The last tokens of the prompt whose logits are returned, too.
            question_length: The first tokens of the prompt that are the question by which "guided" chooses pages, if an
                answer follows them. None: all.
            salt: As in :meth:`generate`.

        Raises:
            SpecError: A value is not allowed.
        """
        options: dict[str, Any] = {"max_new_tokens": 0, "temperature": 0.0, "stop": frozenset(), "scored": True}
        how = self._recovery(recovery, prefix, overlay_tokens, share, attention_temperature, lse_scale)
        options |= {"num_logits": num_logits, "question_length": question_length}
        generation = self._queue(prompt, documents, mode, how, salt=salt, **options)
        generation.result()
        assert generation._layout is not None
        return Scores._of(generation._layout)

    def record(
        self,
        prompt: str | Sequence[int],
        documents: Sequence[str | Sequence[int] | Precomputed] = (),
        *,
        salt: str = "",
    ) -> list[Tensor]:
        """Runs tokens through the model after documents, and returns the queries of each layer.

        :mod:`lazyrope.memory` fits memories to them. The documents see nothing before them (recovery "none").

        Args:
            prompt: The tokens, or the text, whose queries are wanted.
            documents: The documents that these tokens see, as in :meth:`generate`.
            salt: As in :meth:`generate`.

        Returns:
            For each layer the queries, [tokens, num_q_heads, head_dim] in the model's dtype, rotated by the tokens'
            logical positions: the first document's token 0 is at position 0.

        Raises:
            SpecError: A value is not allowed, or ranks divide the model: each has the queries of other heads.
        """
        check_is_whole(self.model, "record()")
        options: dict[str, Any] = {"max_new_tokens": 0, "temperature": 0.0, "stop": frozenset(), "recorded": True}
        how = self._recovery("none", None)
        generation = self._queue(prompt, documents, "lazy", how, salt=salt, **options)
        generation.result()
        queries = generation._own.queries
        assert queries is not None
        return [torch.cat(passes) for passes in queries]

    def assess(
        self, samples: Sequence[Sample | dict[str, Any]], *, max_kl: float = 0.1, max_new_tokens: int = 16
    ) -> Assessment:
        """Measures how near each level of recovery comes to an ordinary prefill, on samples of your own.

        The levels have the parameters of :attr:`recovery`. All levels and the ordinary prefill see the same text: if
        the engine has a prefix, it is the first document at level "none". The documents of each sample are stored under
        salts that no other request uses, and the store evicts them when it needs room. Times are right only if the
        engine serves no other requests meanwhile.

        Args:
            samples: Questions over documents, as :class:`Sample` or as dicts with its names. Each needs at least one
                document.
            max_kl: The greatest mean KL, in nats, at which a level is recommended. The default is a choice, and no
                finding: compare the answers, too.
            max_new_tokens: The most tokens of each answer that is compared.

        Raises:
            SpecError: A value is not allowed.
            DocumentTooLarge: A sample does not fit the budget.
        """
        count = check_options(max_kl, max_new_tokens)
        return Assessor(self, count).run(as_samples(samples), max_kl)

    def run(self) -> None:
        """Runs passes until all requests have ended."""
        while self.step():
            pass

    def step(self) -> bool:
        """Runs one pass of the model. It admits the requests that there is room for and advances every running one.

        Returns:
            True if any request has not ended.

        Raises:
            Exception: The error of the model. It has ended all running requests and freed their pages.
        """
        with self._pass_lock:
            is_idle = not traced("Engine.step", self._pass)
        if is_idle and self._running:
            time.sleep(0.001)  # another user of the store is filling the documents that these requests need
        return bool(self._waiting or self._running)

    def cancel(self, generation: Generation) -> None:
        """Ends a request now, or after the pass that another thread is running, and frees its pages."""
        with self._pass_lock:
            if generation.is_done:
                return
            with self._arrivals:
                if generation in self._waiting:
                    self._waiting.remove(generation)
            self._end(generation, "cancelled")

    @property
    def num_running(self) -> int:
        """The number of admitted requests, which have their pages."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """The number of queued requests, which have no pages yet."""
        return len(self._waiting)

    def _recovery(self, level: str | None, prefix: str | Sequence[int] | None, *values: Any) -> Recovery:
        ids = None if prefix is None else self._encode("prefix", prefix)
        return self.recovery.changed(level, ids, *values)

    def _queue(
        self,
        prompt: str | Sequence[int],
        documents: Sequence[str | Sequence[int] | Precomputed],
        mode: str | None,
        recovery: Recovery,
        question_length: int | None = None,
        **fields: Any,
    ) -> Generation:
        mode = self.mode if mode is None else mode
        check("mode", mode, mode in MODES, f"one of {', '.join(MODES)}")
        check_recovers(mode, recovery)
        check_measures(self.store, recovery)
        check("salt", fields["salt"], is_text(fields["salt"]), "text")
        own = self._encode("prompt", prompt)
        check("prompt", prompt, bool(own), "at least one token")
        given = fields.get("num_logits", 0)
        kept = as_int(given)
        is_count = kept is not None and 0 <= kept <= len(own)
        check("num_logits", given, is_count, f"0 to {len(own)}, the number of the prompt's tokens")
        fields["num_logits"] = kept
        end = len(own) if question_length is None else as_int(question_length) or 0
        check("question_length", question_length, 1 <= end <= len(own), f"1 to {len(own)}, or None")
        question = range(max(0, end - recovery.question_tokens), end)
        check_documents(documents)
        texts = [tokens for text in documents if (tokens := self._document(text, mode, recovery))]
        check_number(texts)
        if self.max_model_len is not None:
            sizes = (len(recovery.shown_prefix), sum(map(positions_of, texts)), len(own))
            check_positions(self.max_model_len, *sizes, fields["max_new_tokens"])
        generation = Generation(self, own, texts, mode=mode, recovery=recovery, question=question, **fields)
        with self._arrivals:
            self._waiting.append(generation)
        return generation

    def _advance(self, generation: Generation, known: int) -> None:
        """Runs a pass, unless another thread's pass has generated the request's token number `known` already."""
        with self._pass_lock:
            if generation.is_done or len(generation.tokens) > known:
                return
            if self._pass():
                return
        time.sleep(0.001)

    def _pass(self) -> bool:
        """Runs a pass if there is work. Returns False if there is none."""
        with self._device_lock:
            return self._run_pass()

    def _run_pass(self) -> bool:
        self._admit()
        work, sampled = self._schedule()
        if not work.rows:
            return False
        try:
            with torch.no_grad():
                tokens = self._runner.run(work, [g.temperature if g else 0.0 for g in sampled])
        except BaseException as error:
            for generation in list(self._running):
                self._end(generation, "error", error)
            traceback.clear_frames(error.__traceback__)  # the frames refer to the pass's tensors
            raise
        self._finish_pass(work, sampled, tokens)
        return True

    def _document(self, text: Any, mode: str, recovery: Recovery) -> list[int] | Precomputed:
        """Returns the token ids of a document, or a memory that this request may name."""
        return readable(text, self.store, mode, recovery) if is_memory(text) else self._encode("documents", text)

    def _encode(self, name: str, text: str | Sequence[int]) -> list[int]:
        return token_ids(name, text, self.tokenizer, self.model.config.vocab_size)

    def _admit(self) -> None:
        """Admits queued requests, first come, first served.

        A request that finds no room makes all later requests wait.
        """
        while self._waiting and len(self._running) < self.max_requests:
            generation = self._waiting[0]
            try:
                self._reserve(generation)
            except StoreFull as error:
                if self._running:
                    return
                self._end(generation, "error", error)
            except Exception as error:  # any other error concerns this request alone
                self._end(generation, "error", error)
            except BaseException:  # Ctrl-C: the request stays in the queue, without pages
                self._free_request(generation)
                raise
            else:
                self._running.append(generation)
            self._waiting.popleft()

    def _reserve(self, generation: Generation) -> None:
        """Takes the pages of a request and its documents, and makes the jobs that fill new documents."""
        mode, store, size = MODES[generation.mode], self.store, self.store.page_size
        prefix, texts = list(generation.recovery.shown_prefix), [*generation.documents]
        composed = generation._composition
        room = len(generation.prompt) + max(0, generation.max_new_tokens - 1)  # the last token is not stored
        if mode.copies:
            room += composed.position
        elif composed.choice is not None:
            room += composed.choice.max_tokens
        parts = composed.parts if mode.shares else ()
        contexts = [part.context for part in parts]
        reserved, generation._run = store.reserve(
            [part.tokens for part in parts], room, salt=generation.salt, contexts=contexts
        )
        held = generation._held = [document for document, _ in reserved]
        is_new = [new for _, new in reserved]
        generation.hits = sum(not is_new[i] for i in composed.documents if i is not None) if mode.shares else 0
        memories = []
        for document, new, part in zip(held, is_new, parts, strict=True):
            if new and isinstance(part.tokens, Precomputed):
                memories.append((document, part.tokens))
            elif new:
                self._filling[document] = fill_of(part, document, held, size)
        fill_memories(self.store, memories, generation.salt)
        fills = [self._filling.get(document) for document in held]
        run, question, layers = generation._run, generation.question, generation.recovery.select_layers
        layout = mode.layout(
            RequestParts(generation.prompt, prefix, texts, composed, held, fills, run, size, question, layers)
        )
        generation._layout = layout
        if generation.num_logits:
            layout.own.logits_from = len(generation.prompt) - generation.num_logits
        if generation.recorded:
            layout.own.queries = [[] for _ in range(self._runner.backend.num_layers)]
        if generation.scored:
            for job in (layout.own, *generation._fills):
                if job.done == 0 and job.hidden is None:
                    job.hidden = []

    def _schedule(self) -> tuple[Work, list[Generation | None]]:
        """Chooses the work of the next pass.

        Returns:
            The work, and for each of its rows the request that gets a token after the pass, or None.
        """
        work = Work()
        sampled: list[Generation | None] = []
        left = self.max_pass_tokens - len(self._running)
        measured = 0  # pairs of a token and a page
        planned: dict[int, int] = {}  # tokens of each job in this pass

        def add(job: Job, budget: int) -> int:
            n = min(job.left, budget)
            if n <= 0 or id(job) in planned:
                return 0
            planned[id(job)] = n
            work.rows.append((job, n))
            sampled.append(None)
            return n

        for generation in list(self._running):
            awaited, lost = documents_of_others(generation._held, self._filling)
            if lost:
                self._queue_again(generation, lost)
                continue
            # A job sees tokens of earlier jobs. Only a pass that is full cuts a job, so no later job overtakes it. Jobs
            # that see no awaited document run although the request must wait: the user of the store that fills the
            # awaited document may itself wait for the documents of these jobs.
            for job in generation._fills:
                if not any(sees(job, document) for document in awaited):
                    left -= add(job, left)
            if awaited:
                continue
            if any(job.left > planned.get(id(job), 0) for job in generation._fills):
                continue
            if generation._guide is not None:  # the prompt runs once more after this
                job = generation._guide.job
                most = max(job.measurable(MAX_MASS_PAGES - measured), int(measured == 0))  # a token at least
                n = add(job, min(left, most))
                measured += len(job.measured(n)) * job.max_pages
                left -= n
                continue
            own = generation._own
            # Each running request has one token reserved, so that a long prefill does not stop requests that decode.
            n = add(own, max(left, 0) + 1)
            left -= max(n - 1, 0)
            if n > 0 and own.done == 0 and generation._layout is not None:
                work.moves += generation._layout.moves
            if n > 0 and n == own.left and generation.max_new_tokens > 0:
                sampled[-1] = generation
        return work, sampled

    def _queue_again(self, generation: Generation, lost: list[Document]) -> None:
        """Queues a request again whose documents others have given up. This engine then fills them.

        Jobs over these documents read pages that are about to be released, so they are abandoned. Each request that
        shares such a job has no tokens yet, for its documents are not ready either, and is queued again, too.
        """
        for document in generation._held:
            if (job := self._filling.get(document)) and any(sees(job, each) for each in lost):
                del self._filling[document]
                self.store.abandon(document)
        self._running.remove(generation)
        self._free_request(generation)
        self._waiting.appendleft(generation)

    def _finish_pass(self, work: Work, sampled: list[Generation | None], tokens: list[int]) -> None:
        for job, n in work.rows:
            job.done += n
        for document, job in list(self._filling.items()):
            if job.left == 0:
                del self._filling[document]
                self.store.commit(document)
        moved = sum(move.length for move in work.moves)
        self.store.count_copied(moved * self.store.page_bytes // self.store.page_size)
        now = time.perf_counter()
        for generation, token in zip(sampled, tokens, strict=True):
            if generation is not None:
                self._receive(generation, token, now)
        for generation in list(self._running):
            if generation._guide is not None and generation._guide.job.left == 0:
                generation._guide.choose()
            own = generation._own
            if own.done > 0 and MODES[generation.mode].copies:
                self._release_documents(generation)
            if own.left == 0 and generation.max_new_tokens == 0:
                self._end(generation, "length")

    def _receive(self, generation: Generation, token: int, now: float) -> None:
        if generation.first_token is None:
            generation.first_token = now
        if token in generation.stop:
            return self._end(generation, "stop")
        generation.tokens.append(token)
        generation._own.tokens.append(token)
        if len(generation.tokens) == generation.max_new_tokens:
            self._end(generation, "length")

    def _end(self, generation: Generation, reason: str, error: BaseException | None = None) -> None:
        if generation in self._running:
            self._running.remove(generation)
        self._free_request(generation)
        generation.error = error
        generation.finished = time.perf_counter()
        generation.finish_reason = reason  # set last, for other threads read it as the end of the request

    def _free_request(self, generation: Generation) -> None:
        self._release_documents(generation)
        if generation._run is not None:
            self.store.free(generation._run)
            generation._run = None

    def _release_documents(self, generation: Generation) -> None:
        """Releases a request's documents.

        A document that this engine is computing and that no other running request needs is abandoned. The prefix is
        released last and overlays first: the store evicts the earliest released first, and few requests share an
        overlay.
        """
        held, generation._held = generation._held, []
        if not held:
            return
        needed = {document for other in self._running for document in other._held}
        for document in reversed(held):
            if document in self._filling and document not in needed:
                del self._filling[document]
                self.store.abandon(document)
            self.store.release(document)
