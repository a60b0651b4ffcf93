"""Files of memories: written whole or not at all, and checked when they are read."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import struct
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import StoreError
from .memories import KINDS, Memory
from .report import Report
from .scores import Scores

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor

MAGIC = b"lazyrope memory 1\n"
DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.float64)}
LENGTH = struct.Struct("<Q")


def save(memory: Memory, path: str | os.PathLike[str]) -> None:
    """Writes a memory to a file. If it fails, a file that was there before is unchanged.

    A file that is replaced keeps its permissions. A new one has those of the process's umask.

    Raises:
        OSError: The file cannot be written.
    """
    target = Path(path)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in memory.tensors().items()}
    header = json.dumps(
        {
            "kind": memory.kind,
            "key": memory.key,
            "model": memory.model,
            "num_positions": memory.num_positions,
            "scores": [asdict(each) for each in memory.scores],
            "arguments": memory.arguments,
            "report": memory.report.as_dict(),
            "tensors": {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()},
        }
    ).encode()
    digest = hashlib.sha256()
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with open(unfinished, "xb") as file:  # tempfile's files have mode 0600, whatever the umask
            for part in (MAGIC, LENGTH.pack(len(header)), header, *map(_bytes_of, tensors.values())):
                file.write(part)
                digest.update(part)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, unfinished)
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], attention: Any = None, *, device: Any = None) -> Memory:
    """Reads a memory from a file.

    Args:
        path: The file.
        attention: An engine or a store of documents. The memory must be of its model, and goes to its device. None: any
            model is accepted.
        device: The device of the tensors. None: that of `attention`, or the CPU.

    Raises:
        OSError: The file cannot be read.
        StoreError: It is no file of a memory, it is damaged, or the memory is of another model or of other scores.
    """
    data = Path(path).read_bytes()
    if not data.startswith(MAGIC):
        raise StoreError(f"{path} is no file of lazyrope.memory.save(), or it is of another version: build it again")
    body, digest = data[:-32], data[-32:]
    if hashlib.sha256(body).digest() != digest:
        raise StoreError(f"{path} is damaged: its checksum is wrong. Build the memory again, or copy the file again")
    begin = len(MAGIC) + LENGTH.size
    (length,) = LENGTH.unpack_from(body, len(MAGIC))
    header = json.loads(body[begin : begin + length])
    store = getattr(attention, "store", attention)
    scores = [Scores(**each) for each in header["scores"]]
    if store is not None:
        store._keys.check_memory(str(path), header["model"], scores)
    device = device if device is not None or store is None else store.device
    tensors = _tensors_of(body, begin + length, header["tensors"], device)
    of_kind = KINDS[header["kind"]]
    if not tensors.keys() <= {each.name for each in fields(of_kind)}:
        raise StoreError(f"{path} is of another version of lazyrope: build the memory again")
    return of_kind(
        key=header["key"],
        model=header["model"],
        num_positions=header["num_positions"],
        scores=scores,
        arguments=header["arguments"],
        report=Report.of_dict(header["report"]),
        **tensors,
    )


def _bytes_of(tensor: Tensor) -> bytes:
    data: bytes = tensor.flatten().view(torch.uint8).numpy().tobytes()
    return data


def _tensors_of(body: bytes, at: int, entries: dict[str, Any], device: Any) -> dict[str, Tensor]:
    tensors = {}
    for name, (dtype, shape) in entries.items():
        empty = torch.empty(shape, dtype=DTYPES[dtype])
        size = empty.numel() * empty.element_size()
        if size:
            data = bytearray(body[at : at + size])
            empty = torch.frombuffer(data, dtype=torch.uint8).view(DTYPES[dtype]).view(shape)
        tensors[name] = empty.to(device)
        at += size
    return tensors
