"""Runs the ``lazyrope`` command, and makes its inputs."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import stat
import subprocess
import threading
from pathlib import Path

KERNELS = ["plan", "attend_decode", "attend_prefill", "plan_append", "append"]
ARCH = "sm_90a"
SPEC = "--head-dim 64 --q-heads 6 --kv-heads 2 --rope neox --rope-param theta=10000".split()
MISSING_NVRTC = "/nonexistent/libnvrtc.so.13"


def nvidia_packages() -> Path:
    """Returns the folder of NVIDIA's PyPI packages, which include NVRTC."""
    return next(
        root
        for root in map(Path, importlib.util.find_spec("nvidia").submodule_search_locations)
        if any(root.glob("*/lib/libnvrtc.so.*"))
    )


def environment(**changes: str | Path | None) -> dict[str, str]:
    """Returns this process's environment without LAZYROPE_*, with an NVRTC and `changes`; None removes a name."""
    result = {name: value for name, value in os.environ.items() if not name.startswith("LAZYROPE_")}
    result["LAZYROPE_NVRTC"] = str(next(nvidia_packages().glob("*/lib/libnvrtc.so.1?")))
    result |= {name: str(value) for name, value in changes.items()}
    return {name: value for name, value in result.items() if changes.get(name, value) is not None}


def run_command(command: str | Path, *arguments: object, code: int = 0, **changes: str | Path | None):
    result = subprocess.run(
        [command, *map(str, arguments)], env=environment(**changes), capture_output=True, text=True, timeout=300
    )
    assert result.returncode == code, f"{arguments}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def write_config(directory: Path, **changes: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "hidden_size": 384,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
    }
    file = directory / "config.json"
    file.write_text(json.dumps(config | changes))
    return file


def flip_last_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def run_on_terminal(command: str | Path, *arguments: object, code: int = 0, **changes: str | Path | None) -> str:
    """Runs the command with a terminal as its stderr, and returns the text that it shows there."""
    terminal, stderr = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(terminal, 4096):
                seen.append(chunk)
        except OSError:  # Linux raises this once the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        result = subprocess.run(
            [command, *map(str, arguments)],
            env=environment(**changes),
            stderr=stderr,
            stdout=subprocess.DEVNULL,
            timeout=300,
        )
    finally:
        os.close(stderr)
        reader.join()
        os.close(terminal)
    assert result.returncode == code
    return b"".join(seen).decode()


def put_irregular(cache: Path, target: Path) -> Path:
    """Puts a link, a FIFO, a socket and a folder in the place of entries. Returns the folder."""
    link, fifo, bound, folder = (cache / f"{digit * 64}.lzr" for digit in "abcd")
    cache.mkdir(exist_ok=True)
    target.write_text("precious")
    link.symlink_to(target)
    os.mkfifo(fifo)
    os.mknod(bound, stat.S_IFSOCK | 0o600)
    folder.mkdir()
    return folder
