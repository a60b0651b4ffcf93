"""The machine of a run: its GPU, its driver and its packages."""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Sequence
from typing import Any

import lazyrope

from .timer import Timer, torch_with_gpu


def environment(timer: Timer) -> dict[str, Any]:
    """Returns the machine's part of the JSON object, with the rate of a GEMM and the time of an empty launch."""
    torch = torch_with_gpu()
    a, b = (torch.randn((8192, 8192), dtype=torch.bfloat16, device="cuda") for _ in range(2))
    times = timer.medians({"gemm": lambda: a @ b, "floor": lambda: torch.cuda._sleep(1)})
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "sms": properties.multi_processor_count,
        "driver": first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "date": datetime.date.today().isoformat(),
        "versions": {
            "lazyrope": lazyrope.__version__,
            "torch": torch.__version__,
            "cudnn": str(torch.backends.cudnn.version()),
        },
        "floor_us": times["floor"],
        "gemm_tflops": 2 * 8192**3 / times["gemm"] / 1e6,
    }


def first_line(command: Sequence[str]) -> str | None:
    """Returns the first line of the command's output, or None if the command fails or prints nothing."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip().splitlines()[0] if result.stdout.strip() else None
