"""Specs and configs can be compared, hashed, copied and sent to other processes."""

from __future__ import annotations

import copy
import io
import math
import multiprocessing
import pickle

import lazyrope
import pytest
from lazyrope import rope

TINY = {"head_dim": 64, "num_q_heads": 4, "num_kv_heads": 2}


def specs() -> list[lazyrope.AttentionSpec]:
    """Returns a spec with all defaults, and others that each set other fields."""
    given = [
        {"rope": rope.neox()},
        {"rope": rope.none(), "dtype": "float16"},
        {"rope": rope.llama3(rotary_dim=32, attention_factor=1.25)},
        {"rope": rope.longrope(factors=[1.0] * 32)},
        {"rope": rope.longrope(factors=[1.0 + i / 7 for i in range(32)], attention_factor=1.19)},
        {"rope": rope.neox(), "scale": 0.1, "softcap": 30.5, "sinks": True},
        {"rope": rope.neox(), "mask": "sliding_window", "window": 100},
        {"rope": rope.neox(), "mask": "chunked", "chunk": 100},
        {"rope": rope.none(), "temperature": lazyrope.QueryTemperature(beta=0.1, interval=8192, offset=1)},
        {"rope": rope.neox(), "kv_dtype": "float8_e4m3fn", "batch_invariant": True},
        {"rope": rope.neox(), "query_form": "rotated", "append_form": "raw"},
        {"rope": rope.neox(), "kv_dtype": "float8_e4m3fn", "compute": "float8"},
        {"rope": rope.neox(), "key_bias": True},
        {"rope": rope.neox(), "page_mass": True},
        {"rope": rope.neox(), "states": True},
        {"rope": rope.neox(), "cascade": True},
        {"rope": rope.neox(), "packed_prefill": True},
    ]
    return [lazyrope.AttentionSpec(**TINY, **others) for others in given]


def configs() -> list[lazyrope.KernelConfig]:
    spec = lazyrope.AttentionSpec(**TINY, rope=rope.neox())
    return [*lazyrope.configs(spec, arch="sm_90a"), *lazyrope.configs(spec, arch="sm_80")]


def groups() -> list[lazyrope.LayerGroup]:
    return [lazyrope.LayerGroup(spec, range(i, i + 8, 2)) for i, spec in enumerate(specs())]


VALUES = {
    "LayerGroup": groups,
    "Rope": lambda: [spec.rope for spec in specs()],
    "AttentionSpec": specs,
    "QueryTemperature": lambda: [lazyrope.QueryTemperature(beta=beta, interval=8) for beta in (0.1, 0.2)],
    "TileConfig": lambda: [config.decode for config in configs()],
    "KernelConfig": configs,
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_equal_and_hash_alike_after_any_copy(name):
    values = VALUES[name]()
    for value, same in zip(values, VALUES[name](), strict=True):
        assert value is not same
        pickles = (pickle.dumps(value, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1))
        for other in (same, copy.copy(value), copy.deepcopy(value), *map(pickle.loads, pickles)):
            assert type(other) is type(value)
            assert other == value
            assert hash(other) == hash(value)
            assert repr(other) == repr(value)


@pytest.mark.parametrize("name", VALUES)
def test_values_can_be_dictionary_keys(name):
    values = VALUES[name]()
    distinct = [value for i, value in enumerate(values) if value not in values[:i]]
    assert len(distinct) > 1
    assert len(set(values)) == len(distinct)
    assert {value: i for i, value in enumerate(distinct)}[values[-1]] == distinct.index(values[-1])
    assert values[0] != "another type"


@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_yarn_takes_an_attention_factor(factor):
    """A factor of 1 replaces the default as well, which is not 1."""

    def of_spec(**given: float) -> float:
        yarn = rope.yarn(factor=32.0, original_max_position_embeddings=4096, **given)
        return lazyrope.AttentionSpec(**TINY, rope=yarn).attention_factor

    assert of_spec() == pytest.approx(0.1 * math.log(32.0) + 1)
    assert of_spec(attention_factor=factor) == factor


def kernels() -> list[object]:
    if "emu:sm_80" not in lazyrope.archs():
        pytest.skip("this build has no emulator")
    spec = specs()[0]
    config = lazyrope.configs(spec, "emu:sm_80")[1]
    return [lazyrope.compile(spec, "emu:sm_80", config=config), lazyrope.compile_reposition(spec, "emu:sm_80")]


def test_a_copy_of_a_kernel_is_the_kernel():
    torch = pytest.importorskip("torch")
    for kernel in kernels():
        assert copy.copy(kernel) is kernel and copy.deepcopy(kernel) is kernel
        module = torch.nn.Linear(1, 1)
        module.kernel = kernel
        copied = copy.deepcopy(module)
        assert copied.kernel is kernel and copied.weight is not module.weight


def test_a_kernel_is_compiled_again_from_its_pickle():
    for kernel in kernels():
        pickled = pickle.dumps(kernel)
        lazyrope.clear_cache()
        other = pickle.loads(pickled)
        assert other is not kernel and type(other) is type(kernel)
        assert (other.spec, other.arch) == (kernel.spec, kernel.arch)
        assert repr(other) == repr(kernel)  # it names the config


class Recorder(pickle.Unpickler):
    """Records the names that a pickle refers to."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> object:
        self.modules.add(module)
        return super().find_class(module, name)


def test_pickles_name_public_modules():
    document = lazyrope.Document(0, 1)
    records = [document, lazyrope.Segment(document, 0), lazyrope.Request(0), lazyrope.StepCapacity(1, 1, 1)]
    records += [lazyrope.AppendCapacity(1), lazyrope.TuningWorkload(1, 1, 1, 1), lazyrope.StoreError("full")]
    for value in [*records, *specs(), *configs(), *kernels()]:
        recorder = Recorder(pickle.dumps(value))
        recorder.load()
        assert recorder.modules <= {"lazyrope", "lazyrope.errors"}, value
    documents = pytest.importorskip("lazyrope.documents")
    stats = Recorder(pickle.dumps(documents.Stats(*range(10))))
    stats.load()
    assert stats.modules == {"lazyrope.documents"}


def test_a_worker_process_gets_the_spec():
    """Servers start their workers by spawn."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(repr, specs()) == [repr(spec) for spec in specs()]


def test_an_invalid_pickle_state_is_refused():
    state = specs()[0].__getstate__() | {"num_kv_heads": 3}
    with pytest.raises(lazyrope.SpecError, match="num_kv_heads = 3"):
        lazyrope.AttentionSpec.__new__(lazyrope.AttentionSpec).__setstate__(state)


def numpy_dtypes() -> list[tuple[object, str]]:
    numpy = pytest.importorskip("numpy")
    return [(numpy.float16, "float16"), (numpy.dtype("float16"), "float16")]


def torch_dtypes() -> list[tuple[object, str]]:
    torch = pytest.importorskip("torch")
    return [(torch.float16, "float16"), (torch.half, "float16"), (torch.bfloat16, "bfloat16")]


def ml_dtypes() -> list[tuple[object, str]]:
    numpy, types = pytest.importorskip("numpy"), pytest.importorskip("ml_dtypes")
    return [(types.bfloat16, "bfloat16"), (numpy.dtype(types.bfloat16), "bfloat16")]


@pytest.mark.parametrize("dtypes", [torch_dtypes, numpy_dtypes, ml_dtypes])
def test_dtypes_of_frameworks_equal_their_names(dtypes):
    for dtype, name in dtypes():
        spec = lazyrope.AttentionSpec(**TINY, rope=rope.neox(), dtype=dtype)
        assert spec == lazyrope.AttentionSpec(**TINY, rope=rope.neox(), dtype=name) and spec.dtype == name
        of_pool = lazyrope.AttentionSpec(**TINY, rope=rope.neox(), dtype=name, kv_dtype=dtype)
        assert of_pool == spec
        config = {"model_type": "llama", "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
        config |= {"hidden_size": 256, "rope_theta": 1e4}
        assert lazyrope.AttentionSpec.from_hf(config, dtype=dtype).dtype == name


def test_fp8_dtypes_of_torch_are_accepted():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        spec = lazyrope.AttentionSpec(**TINY, rope=rope.neox(), kv_dtype=dtype)
        assert f"torch.{spec.kv_dtype}" == str(dtype)


@pytest.mark.parametrize(("dtype", "named"), [(int, "int"), (None, "None"), (3, "3"), ("torch.half", "torch.half")])
def test_objects_that_are_not_dtypes_are_refused(dtype, named):
    with pytest.raises(lazyrope.SpecError, match=f'dtype = "{named}"'):
        lazyrope.AttentionSpec(**TINY, rope=rope.neox(), dtype=dtype)
