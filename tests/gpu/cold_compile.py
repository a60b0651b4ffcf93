"""Times a cold compilation: compile() of Llama 3.1 8B's attention in a fresh process with an empty cache.

No GPU is needed. The processes of all builds alternate, first those that wait for all kernels, then those that do not
wait for prefill (wait_for_prefill=False). A build is the root of a source tree and the directory of its package:

    python -m tests.gpu.cold_compile --before ../old:../old/build/package --after .:build/gpu/package --cores 2

"ready" is the time until compile() has returned, "all" the time until all kernels are compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

CODE = """
import json, sys, time, lazyrope
scaling = lazyrope.rope.llama3(
    theta=5e5, factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=8192
)
spec = lazyrope.AttentionSpec(head_dim=128, num_q_heads=32, num_kv_heads=8, rope=scaling)
begin = time.perf_counter()
kernel = lazyrope.compile(spec, sys.argv[1], **json.loads(sys.argv[2]))
ready = time.perf_counter() - begin
assert not any(kernel.from_cache for kernel in kernel.kernels.values())
print(json.dumps({"ready": 1e3 * ready, "all": 1e3 * (time.perf_counter() - begin)}))
"""


def compile_once(package: str, arch: str, cores: int, options: dict[str, bool]) -> dict[str, float]:
    """Returns the milliseconds of one compilation on the first `cores` cores; 0: on all."""

    def use_cores() -> None:
        if cores > 0:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"PYTHONPATH": package, "LAZYROPE_CACHE_DIR": cache}
        command = [sys.executable, "-c", CODE, arch, json.dumps(options)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=use_cores)
    if done.returncode != 0:
        sys.exit(f"{package}: {done.stderr}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, metavar="ROOT:PACKAGE")
    parser.add_argument("--after", required=True, metavar="ROOT:PACKAGE")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--cores", type=int, default=0, help="cores of each process (all)")
    parser.add_argument("--repeats", type=int, default=9, help="processes of each kind (9)")
    options = parser.parse_args()
    before, after = (str(Path(build.partition(":")[2]).resolve()) for build in (options.before, options.after))
    kinds = {
        "before": (before, {}),
        "after": (after, {}),
        "after, without waiting for prefill": (after, {"wait_for_prefill": False}),
    }
    times: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for _ in range(options.repeats):
        for name, (package, arguments) in kinds.items():
            times[name].append(compile_once(package, options.arch, options.cores, arguments))
    base = median(row["ready"] for row in times["before"])
    for name, rows in times.items():
        ready, everything = (median(row[column] for row in rows) for column in ("ready", "all"))
        print(f"{name}: ready {ready:.0f} ms ({ready / base:.2f}), all {everything:.0f} ms ({everything / base:.2f})")


if __name__ == "__main__":
    main()
