"""The part of _core.pyi that is about specs. There is no such module at run time: import from lazyrope."""

from collections.abc import Mapping
from os import PathLike
from typing import Any, final

@final
class Rope:
    """A RoPE variant with its parameters. :mod:`lazyrope.rope` has a function for each."""

    def __init__(self, variant: str, rotary_dim: int | None = None, parameters: Mapping[str, float] = {}) -> None:
        """
        Args:
            variant: "none", "neox", "gptj", "linear", "llama3" or "yarn".
            rotary_dim: columns that turn, from column 0 on: a multiple of 4, from 128 on of 8; None: head_dim.
            parameters: the variant's, by name. AttentionSpec refuses missing and unknown ones.
        """

    @property
    def variant(self) -> str: ...
    @property
    def rotary_dim(self) -> int | None: ...
    @property
    def parameters(self) -> dict[str, float]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, arg0: dict[str, Any], /) -> None: ...

@final
class AttentionSpec:
    """An attention as a model has it: all that decides which kernels it needs. A value, as are its Rope and configs:
    compared, hashed, copied and pickled by what it was made of."""

    def __init__(
        self,
        *,
        head_dim: int,
        num_q_heads: int,
        num_kv_heads: int,
        rope: Rope,
        dtype: str | Any = "bfloat16",
        mask: str = "causal",
        query_form: str = "raw",
        key_form: str = "local",
        append_form: str | None = None,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        kv_dtype: str | Any | None = None,
        batch_invariant: bool = False,
    ) -> None:
        """
        Args:
            head_dim: 64, 72, 80, 96, 112, 128, 160, 192 or 256.
            num_q_heads: a multiple of num_kv_heads, up to 128 times as many.
            num_kv_heads: at least 1.
            rope: from :mod:`lazyrope.rope`.
            dtype: of queries, new keys and values, and outputs: "bfloat16" or "float16", or a dtype of that name:
                torch.bfloat16, numpy.float16, ml_dtypes.bfloat16.
            mask: "causal" (a query at position p sees the keys at positions up to p), "sliding_window" (and of those
                the ones at positions above p - window) or "full".
            query_form: "raw" (the kernel applies all of RoPE) or "rotated" (queries arrive turned by their position).
            key_form: "local": the pool holds each key turned by its index inside its own document.
            append_form: "raw" (append turns keys by their index) or "rotated" (it copies them); query_form by default.
            scale: of the scores, before softmax, at most 1e6; 1 / sqrt(head_dim) by default.
            window: of the mask "sliding_window", in tokens.
            softcap: scaled scores s become softcap x tanh(s / softcap) (Gemma 2, arXiv 2408.00118).
            sinks: calls take a logit of each query head that takes part in its softmax and has no value (gpt-oss).
            kv_dtype: of the pool: "float8_e4m3fn" or "float8_e5m2" (OCP 8-bit floating point; head_dim must be a
                multiple of 16), or dtype, the default. Given by its name or as a dtype, like ``dtype``. What is stored
                is what calls' k_scale and v_scale divide by. NaN in a pool of 8 bits reads as a number.
            batch_invariant: the output of a request has the same bits whatever else its step has: its keys are divided
                in a way that depends on the request alone. Steps with few requests are then slower.

        Raises:
            SpecError: a value is not allowed, or two do not go together.
        """

    @staticmethod
    def from_hf(
        config: str | PathLike[str] | Any,
        *,
        dtype: str | Any | None = None,
        query_form: str = "raw",
        layer: int | None = None,
        kv_dtype: str | Any | None = None,
        batch_invariant: bool = False,
        tensor_parallel: int = 1,
    ) -> AttentionSpec:
        """The attention of a Hugging Face model: Llama, Mistral, Qwen2, Qwen3, Gemma 2, Phi-3, GPT-J, GPT-NeoX, Falcon,
        StarCoder 2, SmolLM 2 and 3, OLMo 2 or gpt-oss.

        Args:
            config: a path to a config.json or to the directory that holds one, a dict, or a config object of
                transformers (anything with ``to_dict()``).
            dtype: "bfloat16" or "float16", or a dtype of that name; the config's own by default.
            query_form: "raw", or "rotated" where the model turns queries and keys before it calls the attention, as
                those of transformers do.
            layer: of models whose layers differ, say in their sliding window: which one, from 0.
            kv_dtype: of the pool: "float8_e4m3fn" or "float8_e5m2"; as dtype by default.
            batch_invariant: what shares a request's step changes no bit of its output.
            tensor_parallel: ranks that divide the heads among them: the spec is that of one, with an equal share of
                the heads. Where there are fewer KV heads than ranks, each is on several.

        Raises:
            SpecError: the config has a model type, RoPE type or key that would change the result and is not
                known, and the message names it; its layers differ and none is given; there is no such file; or the
                heads cannot be divided so.
        """

    @property
    def head_dim(self) -> int: ...
    @property
    def num_q_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def group_size(self) -> int:
        """Query heads per KV head."""

    @property
    def dtype(self) -> str: ...
    @property
    def kv_dtype(self) -> str:
        """Of the pool."""

    @property
    def rope(self) -> Rope: ...
    @property
    def mask(self) -> str: ...
    @property
    def query_form(self) -> str: ...
    @property
    def key_form(self) -> str: ...
    @property
    def append_form(self) -> str: ...
    @property
    def scale(self) -> float: ...
    @property
    def window(self) -> int | None: ...
    @property
    def softcap(self) -> float | None: ...
    @property
    def sinks(self) -> bool: ...
    @property
    def batch_invariant(self) -> bool: ...
    @property
    def frequencies(self) -> list[float]:
        """Radians per token of each rotated pair, in fp64; rotary_dim / 2 of them."""

    @property
    def attention_factor(self) -> float:
        """Of rotated pairs, of queries and of keys."""

    @property
    def rope_pairing(self) -> str:
        """ "half" (column i turns with i + rotary_dim / 2), "interleaved" (2i with 2i + 1), or "none"."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, arg0: dict[str, Any], /) -> None: ...

def head_dims() -> list[int]:
    """Those that kernels are planned for."""

def rope_variants() -> dict[str, str]:
    """Name and meaning of each RoPE variant."""

def masks() -> dict[str, str]:
    """Name and meaning of each mask."""

def model_types() -> list[str]:
    """The model types that :meth:`AttentionSpec.from_hf` knows, as config.json names them."""
