"""Walks the first hour of a new user on a fresh Debian 12, times every step and keeps what each printed.

    make first-hour                     # as root, with debootstrap
    python -m tools.first_hour --keep   # also writes the table into python/docs/start.md

The steps run in a directory that debootstrap fills, without any package of this machine, on a clone of the present
commit: `make demo`, the README's example, the commonest mistakes, Ctrl-C, and the wheel. The wheel is then installed
into a second fresh Debian. Each step must end with the exit code and print the words that the table below names.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from tools.markdown import code_blocks

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "python" / "docs" / "start.md"
CLONE = "/root/lazyrope"
MARKER = ".first-hour"  # a file in the folders that this program may empty
# Where this machine looks for packages, so that the fresh ones do the same.
SETTINGS = ["/etc/pip.conf", "/etc/xdg/pip", "/etc/ssl/certs/ca-certificates.crt", "/etc/resolv.conf", "/etc/hosts"]

CHECK = """
from tools.first_call import SECOND_THEN_FIRST, assert_computes_attention
assert_computes_attention(globals(), SECOND_THEN_FIRST)
print("the result is right")
"""
MISTAKES = """
import lazyrope, torch
calls = {
    "a torch dtype": dict(dtype=torch.bfloat16),
    "a word for RoPE": dict(rope="neox"),
    "a float": dict(head_dim=64.0),
    "a misspelt keyword": dict(head_dims=64),
    "too much": dict(num_q_heads=7),
}
for name, slip in calls.items():
    given = dict(head_dim=64, num_q_heads=8, num_kv_heads=2, rope=lazyrope.rope.neox()) | slip
    try:
        lazyrope.AttentionSpec(**given)
        print(f"{name}: accepted")
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""
INTERRUPT = """
import os, signal, threading, time, lazyrope, torch
spec = lazyrope.AttentionSpec(head_dim=64, num_q_heads=8, num_kv_heads=1, rope=lazyrope.rope.neox())
kernel = lazyrope.compile(spec, arch="emu:sm_80")
q, pool = torch.ones(4000, 8, 64, dtype=torch.bfloat16), torch.ones(250, 16, 1, 64, dtype=torch.bfloat16)
request = lazyrope.Request(range(4000), [lazyrope.Segment(lazyrope.Document(0, 4000), base=0)])
step = kernel.plan(lazyrope.batch([request], torch.arange(250, dtype=torch.int32)))
sent = []
def ctrl_c():
    time.sleep(1)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=ctrl_c).start()
try:
    kernel(q, pool, pool.clone(), step)
except KeyboardInterrupt:
    waited = time.monotonic() - sent[0]
    print(f"KeyboardInterrupt {1000 * waited:.0f} ms after Ctrl-C")
    assert waited < 0.5
"""


@dataclass
class Step:
    """A command of the user in one of the fresh systems.

    Attributes:
        what: What the user does, for the table.
        command: The shell command, in the clone's folder.
        words: Texts that it must print.
        code: Its exit code.
        machine: The number of the fresh system.
        measures: A regular expression whose group is the figure for the table.
        limit: The most seconds that it may take.
    """

    what: str
    command: str
    words: tuple[str, ...] = ()
    code: int = 0
    machine: int = 1
    measures: str = ""
    limit: float = math.inf


STEPS = [
    Step("install `make` and Python", "apt-get update -qq && apt-get install -y -qq make python3 > /dev/null"),
    Step("`make demo`: the build, kernels of three models and the README's example", "make demo",
         ("Relative error of out against fp64",), measures=r"(error of out against fp64: [^;]*)"),
    Step("the README's example again", ".venv/bin/python first.py", ("is right",)),
    Step("two documents in both orders", ".venv/bin/python python/examples/documents_in_two_orders.py"),
    Step("five mistakes in Python", ".venv/bin/python mistakes.py",
         ("a torch dtype: accepted", "rope.neox()", "head_dim", "did you mean 'head_dim'", "num_q_heads")),
    Step("a misspelt command", ".venv/bin/lazyrope complie", ("did you mean compile?",), code=2),
    Step("`lazyrope doctor`", ".venv/bin/lazyrope doctor", ("NVRTC", "emulator")),
    Step("Ctrl-C in a call of the emulator", ".venv/bin/python interrupt.py", ("KeyboardInterrupt",),
         measures=r"(\d+ ms after Ctrl-C)"),
    Step("`make wheels`: an sdist and a wheel", "make wheels"),
    Step("on a second Debian: Python, and a C++ compiler for the emulator",
         "apt-get update -qq && apt-get install -y -qq python3-venv g++ > /dev/null", machine=2),
    Step("NVRTC and PyTorch from the index",
         "python3 -m venv venv && venv/bin/pip install -q --no-compile numpy torch==2.13.0 'nvidia-cuda-nvrtc==13.0.*'",
         machine=2),
    Step("install the wheel and run the README's example",
         "venv/bin/pip install -q --no-index --no-compile dist/lazyrope-*.whl && venv/bin/python first.py",
         ("is right",), machine=2, limit=15),
]  # fmt: skip


class Debian:
    """A fresh Debian 12 in a directory, in which commands run by chroot."""

    def __init__(self, root: Path, mirror: str) -> None:
        self.root = root
        run(["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(root), mirror])
        for name in [*SETTINGS, *package_folders()]:
            source, target = Path(name), root / name.lstrip("/")
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            elif source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Gives the system its /proc while the context lasts. Of /dev it has the nodes that debootstrap makes."""
        run(["mount", "-t", "proc", "proc", str(self.root / "proc")])
        try:
            yield
        finally:
            run(["umount", "--lazy", str(self.root / "proc")])

    def run(self, command: str, log: Path) -> int:
        """Runs a shell command in the clone's folder, with a new user's environment. Returns its exit code."""
        wanted = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}
        wanted |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        with log.open("wb") as out:
            return subprocess.run(
                ["chroot", str(self.root), "/bin/sh", "-c", f"mkdir -p {CLONE} && cd {CLONE} && {command}"],
                env=wanted, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}")


def package_folders() -> list[str]:
    """Returns the local folders in which this machine's pip looks for packages."""
    shown = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    words = [*shown.replace("'", " ").replace("\\n", " ").split(), *os.environ.get("PIP_FIND_LINKS", "").split()]
    paths = {word.removeprefix("file://") for word in words}
    return sorted(path for path in paths if path.startswith("/") and Path(path).is_dir())


def prepare(debian: Debian) -> None:
    """Gives the user the clone, and what the user would paste into files."""
    clone = debian.root / CLONE.lstrip("/")
    run(["git", "clone", "-q", f"file://{ROOT}", str(clone)])
    (example,) = code_blocks((ROOT / "README.md").read_text(), "python")
    (clone / "first.py").write_text(example + CHECK)
    (clone / "mistakes.py").write_text(MISTAKES)
    (clone / "interrupt.py").write_text(INTERRUPT)


def fault_of(step: Step, code: int, seconds: float, text: str) -> str:
    if code != step.code:
        return f"exit code {code}, not {step.code}"
    if seconds > step.limit:
        return f"it took {seconds:.0f} s, more than {step.limit} s"
    missing = [word for word in step.words if word not in text]
    return f"it did not print {', '.join(missing)}" if missing else ""


def walk(folder: Path, mirror: str, logs: Path) -> tuple[list[tuple[Step, float, str]], str]:
    """Runs the steps. Returns each with its seconds and its figure, and the fault of the last, or an empty text."""
    systems: dict[int, Debian] = {}
    rows = []
    with tqdm(STEPS, unit="step", disable=None) as bar:
        for number, step in enumerate(bar, 1):
            if step.machine not in systems:
                bar.set_postfix_str("debootstrap")
                systems[step.machine] = Debian(folder / f"debian-{step.machine}", mirror)
                prepare(systems[step.machine])
                if step.machine > 1:
                    shutil.copytree(folder / "debian-1" / CLONE[1:] / "dist", folder / "debian-2" / CLONE[1:] / "dist")
            bar.set_postfix_str(step.what)
            log = logs / f"{number:02}.log"
            begin = time.monotonic()
            with systems[step.machine].mounted():
                code = systems[step.machine].run(step.command, log)
            seconds = time.monotonic() - begin
            text = log.read_text(errors="replace")
            found = re.search(step.measures, text) if step.measures else None
            rows.append((step, seconds, found[1] if found else ""))
            if fault := fault_of(step, code, seconds, text):
                return rows, f"step {number}, {step.what}: {fault}; see {log}"
    return rows, ""


def table(rows: list[tuple[Step, float, str]]) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    text = "| step | seconds | |\n|:--|--:|:--|\n"
    text += "".join(f"| {step.what} | {seconds:.0f} | {figure} |\n" for step, seconds, figure in rows)
    where = f"{os.cpu_count()} cores ({platform.machine()}), no GPU, commit {commit.strip()}"
    return text + f"\nMeasured {datetime.date.today()} by `make first-hour` on {where}. Downloads are included.\n"


def keep(text: str) -> None:
    begin, end = "<!-- first-hour -->\n", "<!-- /first-hour -->"
    page = PAGE.read_text()
    section = f"### How long it takes\n\n{text}"
    PAGE.write_text(page[: page.index(begin) + len(begin)] + section + page[page.index(end) :])


def empty(folder: Path) -> None:
    """Makes the folder, or removes what an earlier run left in it. A folder with other files is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        (folder / MARKER).touch()
    if not (folder / MARKER).exists():
        sys.exit(f"first-hour: {folder} has files that this program did not write; give an empty folder")
    for item in folder.iterdir():
        if item.is_dir():
            shutil.rmtree(item)
        elif item.name != MARKER:
            item.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "first-hour", help="for the systems and logs")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian", help="of Debian")
    parser.add_argument("--keep", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("first-hour: run it as root on a machine with debootstrap (Debian: apt-get install debootstrap)")
    if str(arguments.folder.resolve()) in Path("/proc/self/mounts").read_text():
        sys.exit(f"first-hour: something is still mounted in {arguments.folder}; unmount it")
    empty(arguments.folder)
    rows, fault = walk(arguments.folder, arguments.mirror, arguments.folder)
    text = table(rows)
    (arguments.folder / "summary.md").write_text(text)
    print(text)
    if fault:
        sys.exit(f"first-hour: {fault}")
    if arguments.keep:
        keep(text)


if __name__ == "__main__":
    main()
