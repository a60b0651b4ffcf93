"""Calls take the tensors of any framework: they are used rightly, or refused with the reason."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lazyrope
import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

ARCH = "emu:sm_80"
pytestmark = pytest.mark.skipif(ARCH not in lazyrope.archs(), reason="this build has no emulator")

PAGES, TOKENS = 3, 40
SPEC = lazyrope.AttentionSpec(
    head_dim=64, num_q_heads=4, num_kv_heads=2, rope=lazyrope.rope.neox(), dtype="float16", sinks=True
)
GPU = 2  # kDLCUDA of DLPack


def values(seed: int, *shape: int, dtype: str = "float16") -> numpy.ndarray:
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype)


def ints(*numbers: int) -> numpy.ndarray:
    return numpy.array(numbers, dtype=numpy.int32)


Convert = Callable[[numpy.ndarray], Any]


class Calls:
    """The arguments of all calls as NumPy arrays. A test converts the inputs, the pools or the results."""

    def __init__(self) -> None:
        self.kernel = lazyrope.compile(SPEC, arch=ARCH)
        self.mover = lazyrope.compile_reposition(SPEC, arch=ARCH)
        self.expected = self.attend()

    def step(self, convert: Convert = numpy.copy) -> lazyrope.Step:
        segments = lazyrope.Segments(*(convert(ints(*x)) for x in ([0, 1], [0], [0], [TOKENS], [0])))
        pages = convert(ints(2, 0, 1))
        return self.kernel.plan(convert(ints(0, 3)), convert(ints(40, 41, 42)), segments, pages, check=True)

    def batch(self, convert: Convert) -> lazyrope.Step:
        segment = lazyrope.Segment(lazyrope.Document(0, TOKENS), base=0)
        request = lazyrope.Request(convert(ints(40, 41, 42)), [segment])
        return self.kernel.plan(lazyrope.batch([request], convert(ints(2, 0, 1))), check=True)

    def pool(self, seed: int) -> numpy.ndarray:
        return values(seed, PAGES, 16, 2, 64)

    def attend(self, convert: Convert = numpy.copy, step: lazyrope.Step | None = None, **given: Any) -> tuple[Any, Any]:
        inputs = {"q": values(1, 3, 4, 64), "k_pool": self.pool(2), "v_pool": self.pool(3)}
        inputs["sinks"] = values(4, 4, dtype="float32")
        arguments = {name: convert(array) for name, array in inputs.items()} | given
        return self.kernel(step=step or self.step(), **arguments)

    def writes(self, convert: Convert = numpy.copy, first_page: int = 0) -> lazyrope.AppendStep:
        spans = lazyrope.TokenSpans(*(convert(ints(*x)) for x in ([0, 9], [0], [first_page])))
        return self.kernel.plan_append(spans, convert(ints(2, 0, 1)), capacity=lazyrope.AppendCapacity(9), check=True)

    def append(self, k_pool: Any, v_pool: Any, convert: Convert = numpy.copy) -> None:
        k, v = (convert(values(seed, 9, 2, 64)) for seed in (5, 6))
        self.kernel.append(k, v, k_pool, v_pool, self.writes(convert), check=True)

    def reposition(self, k_pool: Any, v_pool: Any) -> None:
        self.mover(k_pool, v_pool, self.writes(), self.writes(first_page=1), check=True)


@pytest.fixture(scope="module")
def calls() -> Calls:
    return Calls()


def assert_expected(calls: Calls, results: tuple[Any, Any]) -> None:
    for result, same in zip(results, calls.expected, strict=True):
        assert numpy.array_equal(numpy.asarray(result), same)


def read_only(array: numpy.ndarray) -> numpy.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def from_bytes(array: numpy.ndarray) -> numpy.ndarray:
    return numpy.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


def mapped(directory: Path) -> Convert:
    def convert(array: numpy.ndarray) -> numpy.ndarray:
        path = directory / f"{len(list(directory.iterdir()))}.npy"
        numpy.save(path, array)
        return numpy.load(path, mmap_mode="r")

    return convert


@pytest.mark.parametrize("kind", ["writeable=False", "frombuffer", "mmap"])
def test_read_only_arrays_serve_as_inputs(calls, kind, tmp_path):
    convert = {"writeable=False": read_only, "frombuffer": from_bytes, "mmap": mapped(tmp_path)}[kind]
    assert not convert(ints(1)).flags.writeable
    assert_expected(calls, calls.attend(convert, calls.step(convert)))
    assert_expected(calls, calls.attend(convert, calls.batch(convert)))
    pools, same = ([calls.pool(7), calls.pool(8)] for _ in range(2))
    calls.append(*pools, convert=convert)
    calls.append(*same)
    assert not numpy.array_equal(pools[0], calls.pool(7))
    assert all(numpy.array_equal(*pair) for pair in zip(pools, same, strict=True))


class Copied:
    """A tensor whose framework copies it for DLPack, as those do that keep tensors elsewhere."""

    def __init__(self, array: numpy.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array.__dlpack__(copy=True, **arguments)


@pytest.mark.parametrize(
    ("convert", "reason"),
    [(read_only, r"\(numpy.ndarray\) is read-only, and the call writes to it"), (Copied, "would be lost")],
    ids=["read-only", "copied"],
)
def test_tensors_that_cannot_be_written_are_refused_as_results_and_written_pools(calls, convert, reason):
    out, lse = values(0, 3, 4, 64), values(0, 3, 4, dtype="float32")
    for given in ({"out": out, "lse": convert(lse)}, {"out": convert(out)}):
        name = "lse" if "lse" in given else "out"
        with pytest.raises(lazyrope.SpecError, match=rf"^{name} .*{reason}"):
            calls.attend(**given)
    pool, fixed = calls.pool(2), convert(calls.pool(3))
    for call in (calls.append, calls.reposition):
        for pools, name in (((fixed, pool), "k_pool"), ((pool, fixed), "v_pool")):
            with pytest.raises(lazyrope.SpecError, match=rf"^{name} .*{reason}"):
                call(*pools)
    assert_expected(calls, calls.attend(k_pool=convert(pool)))


class Unversioned:
    """A tensor of a framework older than DLPack 1.0."""

    def __init__(self, array: numpy.ndarray) -> None:
        self.array, self.device = array, array.device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream: int | None = None) -> Any:
        return self.array.__dlpack__(stream=stream)


def test_unversioned_capsules_are_read(calls):
    out = values(0, 3, 4, 64)
    results = calls.attend(
        Unversioned, calls.step(Unversioned), out=Unversioned(out), lse=values(0, 3, 4, dtype="float32")
    )
    assert_expected(calls, (out, results[1]))


def capsule_address(capsule: Any, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, name)


class OfVersionTwo(Copied):
    def __dlpack__(self, **arguments: Any) -> Any:
        capsule = self.array.__dlpack__(**arguments)
        ctypes.c_uint32.from_address(capsule_address(capsule, b"dltensor_versioned")).value = 2
        return capsule


def test_capsules_of_another_version_are_refused(calls):
    with pytest.raises(lazyrope.SpecError, match=r"q is a tensor of DLPack 2\.\d+; lazyrope reads versions 1\.x"):
        calls.attend(q=OfVersionTwo(values(1, 3, 4, 64)))


class OnGpuOne(Unversioned):
    """A tensor that claims to be on the second GPU, so that its results must be there too."""

    def __init__(self, array: numpy.ndarray) -> None:
        self.array, self.dtype = array, array.dtype

    def __array_namespace__(self) -> Any:
        return numpy

    def __dlpack__(self, stream: int | None = None) -> Any:
        capsule = self.array.__dlpack__()
        # The device follows the address of the data in DLTensor.
        device = (ctypes.c_int32 * 2).from_address(capsule_address(capsule, b"dltensor") + 8)
        device[:] = [GPU, 1]
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return GPU, 1


class Namespaced(Unversioned):
    """A tensor with the array API. Its namespace records where it allocates."""

    float32 = numpy.dtype("float32")

    def __init__(self, array: numpy.ndarray, device: str = "device 1") -> None:
        super().__init__(array)
        self.dtype, self.device = array.dtype, device
        self.allocated: list[tuple[tuple[int, ...], str]] = []

    def __array_namespace__(self) -> SimpleNamespace:
        return SimpleNamespace(empty=self.empty, float32=self.float32)

    def empty(self, shape: tuple[int, ...], *, dtype: Any, device: str) -> numpy.ndarray:
        self.allocated.append((shape, device))
        return numpy.empty(shape, dtype)


def test_results_are_allocated_on_the_device_of_the_queries(calls):
    q = Namespaced(values(1, 3, 4, 64))
    assert_expected(calls, calls.attend(q=q))
    assert q.allocated == [((3, 4, 64), "device 1"), ((3, 4), "device 1")]


class WithoutEmpty(Namespaced):
    def __array_namespace__(self) -> SimpleNamespace:
        return SimpleNamespace(float32=self.float32)


def test_results_that_the_framework_cannot_allocate_there_must_be_given(calls):
    q = OnGpuOne(values(1, 3, 4, 64))
    with pytest.raises(
        lazyrope.SpecError, match=r"out cannot be allocated: .*OnGpuOne does not name its device; give out="
    ):
        calls.attend(q=q)
    q = WithoutEmpty(values(1, 3, 4, 64))
    with pytest.raises(lazyrope.SpecError, match=r"out cannot be allocated by .*'empty'; give out="):
        calls.attend(q=q)
    with pytest.raises(lazyrope.SpecError, match=r"lse cannot be allocated by .*'empty'; give lse="):
        calls.attend(q=q, out=values(0, 3, 4, 64))


def of_torch(array: numpy.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy())


def test_tensors_with_the_negative_bit_are_refused(calls):
    """Their memory holds the values with the other sign."""
    lse = torch.zeros((3, 4), dtype=torch.complex64).conj().imag
    scale = torch.complex(torch.ones(4), torch.ones(4)).conj().imag
    assert lse.is_neg() and scale.is_neg()
    for name, tensor in {
        "lse": lse,
        "sinks": scale,
        "q": torch._neg_view(of_torch(values(1, 3, 4, 64))),
        "k_pool": torch._neg_view(of_torch(calls.pool(2))),
        "out": torch._neg_view(of_torch(values(1, 3, 4, 64))),
    }.items():
        with pytest.raises(lazyrope.SpecError, match=rf"^{name} has PyTorch's negative bit.*resolve_neg\(\)"):
            calls.attend(of_torch, **{name: tensor})
    with pytest.raises(lazyrope.SpecError, match=r"^q_indptr has PyTorch's negative bit"):
        calls.step(lambda array: torch._neg_view(of_torch(array)))
    q = torch._neg_view(of_torch(-values(1, 3, 4, 64)))
    assert_expected(calls, calls.attend(of_torch, q=q.resolve_neg()))


def test_conjugate_tensors_are_refused(calls):
    q = of_torch(values(1, 3, 4, 64))
    with pytest.raises(lazyrope.SpecError, match="its dtype must be float16"):
        calls.attend(q=q.to(torch.complex64).conj())
    with pytest.raises(lazyrope.SpecError, match="its dtype must be float16"):
        calls.attend(q=torch.complex(q.float(), q.float()).conj().real)


def test_tensors_that_require_a_gradient_are_refused_while_gradients_are_enabled(calls):
    given = {"q": values(1, 3, 4, 64), "out": values(0, 3, 4, 64), "sinks": values(4, 4, dtype="float32")}
    for name, array in given.items():
        tensor = of_torch(array).requires_grad_()
        with pytest.raises(lazyrope.SpecError, match=rf"^{name} requires a gradient, and lazyrope has no backward"):
            calls.attend(of_torch, **{name: tensor})
        for allowed in (torch.no_grad, torch.inference_mode):
            with allowed():
                assert_expected(calls, calls.attend(of_torch, **{name: tensor}))
        assert_expected(calls, calls.attend(of_torch, **{name: tensor.detach()}))


class Subclass(torch.Tensor):
    pass


def test_tensors_of_subclasses_with_memory_are_used(calls):
    q = of_torch(values(1, 3, 4, 64))
    for tensor in (q.as_subclass(Subclass), torch.nn.Parameter(q, requires_grad=False)):
        assert_expected(calls, calls.attend(of_torch, q=tensor))
    with torch.inference_mode():
        assert_expected(calls, calls.attend(of_torch))


def test_tensors_without_memory_are_refused(calls):
    q = of_torch(values(1, 3, 4, 64))

    def attend(tensor: torch.Tensor) -> torch.Tensor:
        return calls.attend(of_torch, q=tensor)[0]

    def attend_fake(tensor: torch.Tensor) -> torch.Tensor:
        with FakeTensorMode() as mode:
            return attend(mode.from_tensor(tensor))

    def attend_freed(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.untyped_storage().resize_(0)
        return attend(tensor)

    for call in (
        attend_fake,
        attend_freed,
        lambda tensor: attend(tensor.to("meta")),
        lambda tensor: attend(tensor.to_sparse()),
        lambda tensor: torch.vmap(attend, in_dims=1)(tensor),
        lambda tensor: torch.func.grad(lambda x: attend(x).float().sum())(tensor),
        torch.func.functionalize(attend),
    ):
        with pytest.raises(lazyrope.SpecError, match=r"^q .*(cannot be used as a tensor|has no memory)"):
            call(q)
