"""The library's messages reach Python's logging from every thread, or stderr if LAZYROPE_LOG is set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lazyrope
import pytest

pytestmark = pytest.mark.skipif("emu:sm_80" not in lazyrope.archs(), reason="this build has no emulator")

# Compiling into an empty cache logs at level info. An unwritable cache adds a warning.
COMPILE = """
import lazyrope
def compile(num_kv_heads=2):
    rope = lazyrope.rope.neox(1000.0 + num_kv_heads)
    spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=4, num_kv_heads=num_kv_heads, rope=rope)
    return lazyrope.compile_reposition(spec, arch="emu:sm_80")
"""


def run(code: str, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LAZYROPE_LOG"}
    environment |= {"LAZYROPE_CACHE_DIR": str(tmp_path / "cache")} | variables
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", COMPILE + code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_messages_reach_the_logger_at_their_levels(tmp_path):
    code = """
import logging
logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(funcName)s %(message)s")
def mine():
    compile()
mine()
"""
    lines = run(code, tmp_path).stderr.splitlines()
    assert any(
        line.startswith("lazyrope INFO compile compiled lazyrope_reposition for emu:sm_80 in ") for line in lines
    )
    warned = run(code, tmp_path, LAZYROPE_CACHE_DIR="/proc/lazyrope").stderr
    assert "lazyrope WARNING compile lazyrope_reposition is not cached on disk: " in warned


def test_without_a_handler_only_warnings_are_printed(tmp_path):
    assert run("compile()", tmp_path).stderr == ""
    warned = run("compile()", tmp_path, LAZYROPE_CACHE_DIR="/proc/lazyrope").stderr
    assert " is not cached on disk: cannot create directory /proc/lazyrope" in warned


def test_the_level_of_the_logger_filters_messages(tmp_path):
    code = """
import logging
logging.getLogger("lazyrope").setLevel(logging.ERROR)
compile()
"""
    assert run(code, tmp_path, LAZYROPE_CACHE_DIR="/proc/lazyrope").stderr == ""


@pytest.mark.parametrize(("level", "says"), [("info", True), ("warning", False), ("off", False)])
def test_lazyrope_log_sends_messages_to_stderr_instead(tmp_path, level, says):
    code = """
import logging
logging.basicConfig(level=logging.DEBUG, format="to the logger: %(message)s")
compile()
"""
    text = run(code, tmp_path, LAZYROPE_LOG=level).stderr
    assert text.startswith("lazyrope: info: compiled ") == says and bool(text) == says
    assert "to the logger" not in text


def test_messages_before_an_error_are_logged(tmp_path):
    code = """
import logging
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append(record.getMessage())
logging.getLogger("lazyrope").addHandler(Keep())
logging.getLogger("lazyrope").setLevel(logging.DEBUG)
compile()
try:
    lazyrope.compile(compile().spec, arch="emu:sm_80")
except lazyrope.CacheError:
    assert False, "policy is jit"
try:
    lazyrope.compile(compile().spec, arch="nowhere")
except lazyrope.SpecError:
    print(len(records))
"""
    assert int(run(code, tmp_path).stdout) >= 6


def test_threads_that_compile_at_once_do_not_deadlock(tmp_path):
    """Threads do not deadlock on the interpreter's lock or a handler's lock, though handlers call the library."""
    code = """
import faulthandler, logging, threading
faulthandler.dump_traceback_later(200, exit=True)
records = []
class Calls(logging.Handler):
    def emit(self, record):
        records.append((record.getMessage(), threading.current_thread().name))
        lazyrope.archs()
        lazyrope.doctor()
logger = logging.getLogger("lazyrope")
logger.addHandler(Calls())
logger.setLevel(logging.DEBUG)
threads = [threading.Thread(target=compile, args=(n,)) for n in (1, 2, 4)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    lazyrope.archs()
for thread in threads:
    thread.join()
print(sum(text.startswith("compiled ") for text, _ in records))
"""
    assert run(code, tmp_path).stdout.split() == ["3"]


def test_an_error_of_a_handler_does_not_make_the_call_fail(tmp_path):
    code = """
import logging
class Broken(logging.Handler):
    def emit(self, record):
        raise RuntimeError("broken handler")
    def handle(self, record):
        self.emit(record)
logging.getLogger("lazyrope").addHandler(Broken())
logging.getLogger("lazyrope").setLevel(logging.DEBUG)
print(compile().arch)
"""
    done = run(code, tmp_path)
    assert done.stdout == "emu:sm_80\n" and "broken handler" in done.stderr
