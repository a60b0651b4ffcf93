"""The script that makes vLLM's environment refuses arguments that would remove or download the wrong things."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools import set_up_vllm


def test_the_folder_must_be_given():
    command = [sys.executable, set_up_vllm.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.startswith("0 arguments are given; give the folder")


def test_its_own_environment_is_refused():
    with pytest.raises(SystemExit, match="is the environment that runs this script"):
        set_up_vllm.checked_folder([sys.prefix])


def test_an_environment_without_pytorch_is_refused_before_anything_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(set_up_vllm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"has no PyTorch; run this script with the Python of \.venv"):
        set_up_vllm.checked_folder([str(tmp_path / "layer")])


def test_names_of_requirements():
    lines = ["Foo_Bar[x]>=1,<2; python_version > '3'", "torch==2.13.0+cpu", "a.b"]
    assert [set_up_vllm.name_of(line) for line in lines] == ["foo-bar", "torch", "a.b"]


def test_a_layer_finds_the_packages_below(tmp_path):
    python = set_up_vllm.make_layer(tmp_path / "layer")
    found = set_up_vllm.output_of(python, "import pytest, sys; print(pytest.__file__, sys.prefix)").split()
    assert found == [pytest.__file__, str(tmp_path / "layer")]
    (tmp_path / "layer" / "rest-of-an-interrupted-run").touch()
    set_up_vllm.make_layer(tmp_path / "layer")
    assert not (tmp_path / "layer" / "rest-of-an-interrupted-run").exists()
