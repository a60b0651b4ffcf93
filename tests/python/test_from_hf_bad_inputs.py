"""Configs that are no configs: AttentionSpec.from_hf and the command answer with SpecError, and never crash or hang."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import lazyrope
import pytest

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
INFINITE = float("inf")


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def deep_dict(depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for _ in range(depth):
        result = {"a": result}
    return result


def self_referential() -> dict[str, Any]:
    config: dict[str, Any] = dict(LLAMA)
    config["stray"] = [config]
    return config


class Silent:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Config:
    """A config object."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def to_dict(self) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


OBJECTS = {
    "a dict in itself": (self_referential, "Circular reference"),
    "a deep dict": (lambda: LLAMA | {"stray": deep_dict(100)}, "nest more than 64 deep"),
    "a very deep dict": (lambda: LLAMA | {"stray": deep_dict(100_000)}, "nest"),
    "an integer with 10000 digits": (lambda: LLAMA | {"stray": 10**10_000}, "cannot be written as JSON"),
    "a key of bytes": (lambda: LLAMA | {b"hidden_size": 1}, "keys must be str"),
    "a value without text": (lambda: LLAMA | {"stray": Silent()}, "no text"),
    "a surrogate": (lambda: LLAMA | {"stray": "\ud800"}, "not a JSON object"),
    "a surrogate as model_type": (lambda: LLAMA | {"model_type": "\ud83d"}, "not a JSON object"),
    "bytes": (lambda: b"config.json", "not bytes"),
    "a list": (lambda: [LLAMA], "not list"),
    "a set": (lambda: {1}, "not set"),
    "a class": (lambda: Config, "to_dict() of type failed"),
    "to_dict that raises": (lambda: Config(KeyError("a")), "to_dict() of Config failed"),
    "to_dict without a dict": (lambda: Config(7), "not int"),
    "a path with a NUL": (lambda: "a\0b", "is not a file"),
    "a path with a surrogate": (lambda: "\ud800", "is not a file"),
    "a long path": (lambda: json.dumps(LLAMA) * 500, "cannot be read as text"),
    "a huge number of heads": (lambda: LLAMA | {"num_attention_heads": 2**64}, "has the wrong type"),
    "an infinity that is read": (
        lambda: LLAMA | {"rope_theta": INFINITE},
        'rope_theta = "Infinity" has the wrong type',
    ),
    "a NaN that is read": (lambda: LLAMA | {"rope_scaling": {"factor": float("nan")}}, 'factor = "NaN"'),
    "a long string": (lambda: LLAMA | {"head_dim": "7" * 1_000_000}, "(1000002 characters)"),
}


@pytest.mark.parametrize("name", list(OBJECTS))
def test_from_hf_refuses_what_is_no_config(name):
    make, text = OBJECTS[name]
    with pytest.raises(lazyrope.SpecError) as error:
        lazyrope.AttentionSpec.from_hf(make())
    assert text in str(error.value)
    assert len(str(error.value)) < 1000 and str(error.value).isascii()


def test_keys_that_are_not_read_may_hold_anything(caplog):
    stray = {"a": [float("nan"), -INFINITE, 1e300], "b": object(), "c": deep_dict(60)}
    with caplog.at_level(logging.DEBUG, logger="lazyrope"):
        assert lazyrope.AttentionSpec.from_hf(LLAMA | {"stray": stray}) == lazyrope.AttentionSpec.from_hf(LLAMA)
    assert 'config.json: ignored keys, which do not change attention: ["stray"]' in caplog.text


def write_fifo(file: Path) -> None:
    os.mkfifo(file)


def write_large(file: Path) -> None:
    file.write_text(json.dumps(LLAMA | {"stray": "a" * (9 << 20)}))


# 80,000 brackets are 160 KB. Without a limit on the depth they end the process with a segmentation fault.
FILES = {
    "80,000 lists": (lambda file: file.write_text(nested(80_000)), "nest more than 64 deep"),
    "a key with 1,000,000 lists": (
        lambda file: file.write_text(json.dumps(LLAMA).replace("{", '{"stray": ' + nested(1_000_000) + ", ", 1)),
        "nest more than 64 deep",
    ),
    "a FIFO": (write_fifo, "file"),
    "a directory": (lambda file: file.mkdir(), "file"),
    "9 MB": (write_large, "more than 8388608 bytes"),
    "no text": (lambda file: file.write_bytes(b"\xff\xfe{"), "cannot be read as text|not a JSON object"),
    "nothing": (lambda file: file.write_text(""), "not a JSON object"),
}


@pytest.fixture(params=list(FILES))
def bad_file(request, tmp_path) -> tuple[Path, str]:
    """Returns the path of a file that is no config, and a pattern of the error."""
    write, text = FILES[request.param]
    write(tmp_path / "config.json")
    return tmp_path / "config.json", text


@pytest.mark.parametrize("of_directory", [False, True])
def test_from_hf_refuses_files_that_are_no_config(bad_file, of_directory):
    file, text = bad_file
    with pytest.raises(lazyrope.SpecError, match=text):
        lazyrope.AttentionSpec.from_hf(file.parent if of_directory else str(file))


OPTIONS = {"precompile": ["--out", "/nonexistent"]}


@pytest.mark.parametrize("subcommand", ["compile", "precompile", "render"])
def test_the_command_refuses_files_that_are_no_config(command, bad_file, subcommand):
    file, text = bad_file
    done = subprocess.run(
        [command, subcommand, "--model", file, "--arch", "sm_80", *OPTIONS.get(subcommand, [])],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("lazyrope: ") and re.search(text, done.stderr) and len(done.stderr) < 1000
