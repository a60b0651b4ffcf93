"""Describes specs, a part of _core.pyi. This module does not exist at run time: import the names from lazyrope."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, final, type_check_only

@type_check_only
class _Dtype(Protocol):
    """A dtype of PyTorch or NumPy."""

    @property
    def itemsize(self) -> int: ...

@final
class Rope:
    """A RoPE variant with its parameters. :mod:`lazyrope.rope` has a function for each variant."""

    def __init__(
        self,
        variant: str,
        rotary_dim: int | None = None,
        parameters: Mapping[str, float] = {},
        lists: Mapping[str, Sequence[float]] = {},
    ) -> None:
        """
        Args:
            variant: "none", "neox", "gptj", "linear", "llama3", "llama3_gptj", "yarn" or "longrope".
            rotary_dim: The number of columns that are rotated, from column 0 on. It is a multiple of 4; from 128 on, of
                8. None: head_dim.
            parameters: The variant's parameters by name. AttentionSpec refuses missing and unknown ones.
            lists: The variant's lists by name. A list has a number for each rotated pair, rotary_dim / 2 of them.
        """

    @property
    def variant(self) -> str: ...
    @property
    def rotary_dim(self) -> int | None: ...
    @property
    def parameters(self) -> dict[str, float]: ...
    @property
    def lists(self) -> dict[str, list[float]]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, arg0: dict[str, Any], /) -> None: ...

@final
class QueryTemperature:
    """A temperature of queries by their position, as in Llama 4 and Ministral 3.

    The scores of a query at logical position p are multiplied by 1 + beta ln(1 + floor((p + offset) / interval)): by 1
    in the first interval, and by more in later ones.
    """

    def __init__(self, *, beta: float, interval: int, offset: int = 0) -> None:
        """
        Args:
            beta: The growth of the factor, 1e-6 to 1000. AttentionSpec refuses other values.
            interval: The positions in which the factor is the same, 1 to 2^30.
            offset: The positions that are added to a query's, 0 to interval.
        """

    @property
    def beta(self) -> float: ...
    @property
    def interval(self) -> int: ...
    @property
    def offset(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, arg0: dict[str, Any], /) -> None: ...

@final
class AttentionSpec:
    """An attention as a model has it: everything that decides which kernels it needs.

    A spec is a value, and so are its Rope and the configs: it is compared, hashed, copied and pickled by its arguments.

    Example:
        ```python
        spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=lazyrope.rope.llama3())
        spec = lazyrope.AttentionSpec.from_hf("config.json")
        ```
    """

    def __init__(
        self,
        *,
        head_dim: int,
        num_q_heads: int,
        num_kv_heads: int,
        rope: Rope,
        dtype: Literal["bfloat16", "float16"] | _Dtype | type[Any] = "bfloat16",
        mask: Literal["causal", "full", "sliding_window", "chunked"] = "causal",
        query_form: Literal["raw", "rotated"] = "raw",
        key_form: Literal["local", "raw"] = "local",
        append_form: Literal["raw", "rotated"] | None = None,
        scale: float | None = None,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        kv_dtype: Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"] | _Dtype | type[Any] | None = None,
        batch_invariant: bool = False,
        temperature: QueryTemperature | None = None,
        cascade: bool = False,
        page_mass: bool = False,
        key_bias: bool = False,
        packed_prefill: bool = False,
        states: bool = False,
        compute: Literal["dtype", "float8"] = "dtype",
    ) -> None:
        """
        Args:
            head_dim: 64, 72, 80, 96, 112, 128, 160, 192 or 256.
            num_q_heads: The number of query heads, 1 to 128 times num_kv_heads.
            num_kv_heads: The number of KV heads, at least 1.
            rope: The RoPE variant, made by a function of :mod:`lazyrope.rope`.
            dtype: The type of queries, new keys and values, and outputs: "bfloat16", "float16", or a dtype of that name
                such as torch.bfloat16, numpy.float16 or ml_dtypes.bfloat16.
            mask: "causal": a query at position p sees the keys at positions up to p. "sliding_window": of these keys it
                sees only those at positions above p - window. "chunked": only those in its own chunk of positions,
                from the multiple of chunk at or before p. "full": a query sees every key.
            query_form: "raw": the kernel applies all of RoPE. "rotated": queries arrive rotated by their position.
            key_form: "local": the pool holds each key rotated by its index inside its own document. "raw": the pool
                holds keys without rotation, and each call rotates the keys that it reads, which takes longer. Kernels
                with other RoPE tables can then read the same pool: dynamic NTK beyond the original length, and both
                lists of LongRoPE. The pool has 16 bits.
            append_form: "raw": append rotates keys by their index, or stores them as they are if key_form is "raw".
                "rotated": append copies them. The default is query_form, or "raw" with raw keys.
            scale: The factor of the scores before softmax, at most 1e6. The default is 1 / sqrt(head_dim).
            window: The tokens that the mask "sliding_window" shows, the query's own included.
            chunk: The positions of a chunk of the mask "chunked" (Llama 4's attention_chunk_size).
            softcap: A scaled score s becomes softcap x tanh(s / softcap) (Gemma 2, arXiv 2408.00118), 0.001 to 1000.
                None: no cap.
            sinks: If True, each call takes a logit of each query head. It takes part in the softmax and has no value
                (attention sinks, as in gpt-oss).
            kv_dtype: The type of the pool: "float8_e4m3fn" or "float8_e5m2" (OCP 8-bit floating point; head_dim must be
                a multiple of 16), or dtype, the default. It is given by name or as a dtype. With 8 bits, the pool
                holds keys and values divided by the calls' k_scale and v_scale, and a NaN in it reads as a number.
            batch_invariant: If True, a request's output has the same bits whatever other requests its step has: its KV
                splits depend on the request alone. Steps with few requests are then slower.
            temperature: The factor of scores by the query's position. The kernel applies it to raw queries. Rotated
                queries must arrive with it. None: no factor.
            cascade: If True, tokens that several requests of a step read are read once for all of them, each request
                at positions of its own (a position-free cascade). Each step finds these tokens itself: segments read
                them from the same slots of the same pages, whatever list names the pages. Segments may differ before
                and after them. It shares them where that saves time, among requests with few query tokens.
            page_mass: If True, calls can give the attention mass of pages: how much of the softmax's weight falls on
                each run of 16 slots of a request, summed over its query tokens and heads (``page_mass`` of
                :meth:`Attention.__call__`). Such a spec cannot have a cascade.
            key_bias: If True, calls add a bias to the scores of each key, one for each KV head: the weight of key j is
                proportional to exp(score_j + bias_j), with the score after scale, temperature and softcap
                (``key_bias`` of :meth:`Attention.__call__`). Compact documents need it: they keep some tokens of a
                text, for each KV head others, in any slots. So such a spec must have the mask "causal" or "full", and
                local keys.
            packed_prefill: If True, the keys and values of prefill requests may first be copied to the step's scratch,
                each key rotated by the base of its segment. Blocks of keys then mix the tokens of several documents,
                and queries are not rotated for each document, which saves most of the time that short documents cost. A
                step decides by itself whether that saves more than copying costs, and it needs room
                (:attr:`StepCapacity.rotated_tokens`). Only Hopper's kernels pack keys; on other GPUs the argument
                changes nothing. Keys are rounded once more. The pool has 16 bits and local keys. Such a spec has no
                cascade, page_mass, key_bias or batch_invariant.
            states: If True, segments can be memories of attention states (arXiv 2605.18226). A memory is a list of
                entries: a mean query in the key slot, a state in the value slot, and an LSE in ``entry_lse`` of
                :meth:`Attention.__call__`. Each query row looks up the entry of each memory with the greatest score,
                and counts it as one key whose logit is the entry's LSE. Only the keys of a memory are read as a whole.
                Such a spec cannot have a cascade, page_mass, key_bias, packed_prefill, batch_invariant, a window, a
                chunk or raw keys.
            compute: The elements that prefill multiplies: "dtype" for those of the queries, or "float8" for 8 bits,
                which takes less time and is less accurate. With "float8", rotated queries and softmax weights are
                rounded to float8_e4m3fn; keys and values are multiplied as the pool stores them. Only Hopper's kernels
                have such products, for head_dim 64, 96 and 128 and a pool of float8_e4m3fn. Decode, which does not
                gain from them, multiplies elements of the queries' dtype. Such a spec has no cascade, packed_prefill
                or states.

        Raises:
            SpecError: A value is not allowed, or two values do not fit together.
        """

    @staticmethod
    def from_hf(
        config: str | PathLike[str] | Any,
        *,
        dtype: Literal["bfloat16", "float16"] | _Dtype | type[Any] | None = None,
        query_form: Literal["raw", "rotated"] = "raw",
        layer: int | None = None,
        kv_dtype: Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"] | _Dtype | type[Any] | None = None,
        batch_invariant: bool = False,
        tensor_parallel: int = 1,
        max_model_len: int | None = None,
        key_form: Literal["local", "raw"] = "local",
        cascade: bool = False,
        page_mass: bool = False,
        key_bias: bool = False,
        packed_prefill: bool = False,
        states: bool = False,
        compute: Literal["dtype", "float8"] = "dtype",
    ) -> AttentionSpec:
        """Returns the attention of a Hugging Face model.

        The attention is that which transformers makes of the config, with its defaults. Keys that transformers ignores
        for the model type are ignored, and logged at level debug. Of a model of images or audio, the attention is that
        of its text_config, which is logged at level info.

        :func:`lazyrope.model_types` returns the known model types.

        Args:
            config: A path to a config.json or to its directory, a dict, or a config object of transformers (any object
                with ``to_dict()``).
            dtype: "bfloat16" or "float16", or a dtype of that name. The default is the config's own.
            query_form: "raw", or "rotated" if the model rotates queries and keys before it calls the attention, as the
                models of transformers do.
            layer: The layer's number, from 0. It is needed for models whose layers with attention differ, for example
                in their sliding window.
            kv_dtype: The type of the pool: "float8_e4m3fn" or "float8_e5m2". The default is dtype.
            batch_invariant: If True, the other requests of a step change no bit of a request's output.
            tensor_parallel: The number of ranks that divide the heads. The spec is that of one rank, with an equal
                share of the heads. If there are fewer KV heads than ranks, each KV head is on several ranks.
            max_model_len: The most tokens of a request: documents, prompt and new tokens. LongRoPE has its long list if
                this is more than the original context, else its short list. The default is the config's
                max_position_embeddings.
            key_form: "local", or "raw" for a pool of raw keys. With raw keys, dynamic NTK scaling beyond
                max_position_embeddings is that of a request of exactly max_model_len tokens.
            cascade: If True, segments that several requests read are read once, as in :class:`AttentionSpec`.
            page_mass: If True, calls can give the attention mass of pages, as in :class:`AttentionSpec`.
            key_bias: If True, calls add a bias to the scores of each key, as in :class:`AttentionSpec`.
            packed_prefill: If True, prefill may pack the keys of documents, as in :class:`AttentionSpec`.
            states: If True, segments can be memories of attention states, as in :class:`AttentionSpec`.
            compute: The elements that prefill multiplies, as in :class:`AttentionSpec`.

        Raises:
            SpecError: The config has an unknown model type or RoPE type, or a key that would change the result; the
                message names it. Or layers differ and none is given, or the layer has no attention, as the recurrent
                layers of hybrid models. Or the heads cannot be divided among the ranks. Or the frequencies would depend
                on the length of each request, as those of dynamic NTK scaling do for a max_model_len beyond
                max_position_embeddings, and key_form is "local".
                Or the config cannot be read: the file does not exist, is no JSON, has more than 8 MiB, or nests lists
                and objects more than 64 deep.
        """

    @staticmethod
    def groups_from_hf(
        config: str | PathLike[str] | Any,
        *,
        dtype: Literal["bfloat16", "float16"] | _Dtype | type[Any] | None = None,
        query_form: Literal["raw", "rotated"] = "raw",
        kv_dtype: Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"] | _Dtype | type[Any] | None = None,
        batch_invariant: bool = False,
        tensor_parallel: int = 1,
        max_model_len: int | None = None,
        key_form: Literal["local", "raw"] = "local",
        cascade: bool = False,
        page_mass: bool = False,
        key_bias: bool = False,
        packed_prefill: bool = False,
        states: bool = False,
        compute: Literal["dtype", "float8"] = "dtype",
    ) -> list[LayerGroup]:
        """Returns the attention of every layer of a Hugging Face model, as groups of layers with equal specs.

        A model compiles the kernels of each group once. Layers differ in their sliding window (Gemma 2, gpt-oss) or in
        their RoPE (SmolLM3), for example.

        Args:
            config: As in :meth:`from_hf`.
            dtype: As in :meth:`from_hf`.
            query_form: As in :meth:`from_hf`.
            kv_dtype: As in :meth:`from_hf`.
            batch_invariant: As in :meth:`from_hf`.
            tensor_parallel: As in :meth:`from_hf`.
            max_model_len: As in :meth:`from_hf`.
            key_form: As in :meth:`from_hf`.
            cascade: As in :class:`AttentionSpec`.
            page_mass: As in :class:`AttentionSpec`.
            key_bias: As in :class:`AttentionSpec`.
            packed_prefill: As in :class:`AttentionSpec`.
            states: As in :class:`AttentionSpec`.
            compute: As in :class:`AttentionSpec`.

        Returns:
            The groups, in the order of their first layers. Each layer with attention is in one of them. A config that
            does not state the number of layers has layer 0 alone.

        Raises:
            SpecError: As in :meth:`from_hf`, except that layers may differ.
        """

    @property
    def head_dim(self) -> int: ...
    @property
    def num_q_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def group_size(self) -> int:
        """The number of query heads for each KV head."""

    @property
    def dtype(self) -> Literal["bfloat16", "float16"]: ...
    @property
    def kv_dtype(self) -> Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]:
        """The type of the pool's elements."""

    @property
    def rope(self) -> Rope: ...
    @property
    def mask(self) -> Literal["causal", "full", "sliding_window", "chunked"]: ...
    @property
    def query_form(self) -> Literal["raw", "rotated"]: ...
    @property
    def key_form(self) -> Literal["local", "raw"]: ...
    @property
    def append_form(self) -> Literal["raw", "rotated"]: ...
    @property
    def scale(self) -> float: ...
    @property
    def window(self) -> int | None: ...
    @property
    def chunk(self) -> int | None: ...
    @property
    def softcap(self) -> float | None: ...
    @property
    def sinks(self) -> bool: ...
    @property
    def batch_invariant(self) -> bool: ...
    @property
    def temperature(self) -> QueryTemperature | None: ...
    @property
    def cascade(self) -> bool: ...
    @property
    def page_mass(self) -> bool: ...
    @property
    def key_bias(self) -> bool: ...
    @property
    def packed_prefill(self) -> bool: ...
    @property
    def states(self) -> bool: ...
    @property
    def compute(self) -> Literal["dtype", "float8"]: ...
    @property
    def frequencies(self) -> list[float]:
        """The radians per token of each rotated pair, in fp64. The list has rotary_dim / 2 entries."""

    @property
    def attention_factor(self) -> float:
        """The factor that multiplies the rotated pairs of queries and of keys, once each."""

    @property
    def rope_pairing(self) -> Literal["half", "interleaved", "none"]:
        """The columns that RoPE rotates together.

        "half": i and i + rotary_dim / 2. "interleaved": 2i and 2i + 1. "none": there is no rotation.
        """

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, arg0: dict[str, Any], /) -> None: ...

@final
class LayerGroup:
    """The layers of a model that have the same attention. :meth:`AttentionSpec.groups_from_hf` makes it.

    It is a value, as a spec is.
    """

    def __init__(self, spec: AttentionSpec, layers: Sequence[int]) -> None:
        """
        Args:
            spec: The attention of each of the layers.
            layers: The numbers of the layers, from 0 on, ascending. There is at least one.

        Raises:
            SpecError: The layers are not as described.
        """

    @property
    def spec(self) -> AttentionSpec: ...
    @property
    def layers(self) -> tuple[int, ...]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, arg0: dict[str, Any], /) -> None: ...

def head_dims() -> list[int]:
    """Returns the head_dims that have kernels, ascending."""

def rope_variants() -> dict[str, str]:
    """Returns the meaning of each RoPE variant, by name."""

def masks() -> dict[str, str]:
    """Returns the meaning of each mask, by name."""

def model_types() -> dict[str, dict[str, str]]:
    """Returns what :meth:`AttentionSpec.from_hf` reads for each known model type, by its name in config.json.

    The keys of a description are "heads" (the rule of KV heads and head_dim), "windows" (the layers with a sliding
    window), "rope" (the values of rope_type) and "notes".
    """
