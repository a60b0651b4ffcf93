"""Says on which machine, and with which versions, something was measured."""

from __future__ import annotations

import datetime
import platform
import subprocess
from typing import Any

import lazyrope
import torch
import transformers


def environment(commit: str | None) -> dict[str, Any]:
    """Returns the device, the date, the commit and the versions of a measurement. None: git's commit."""
    gpu = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads",
        "is_gpu": gpu,
        "driver": _output(["nvidia-smi", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader"])
        if gpu
        else None,
        "date": datetime.date.today().isoformat(),
        "commit": commit or _output(["git", "rev-parse", "--short", "HEAD"]),
        "versions": {
            "lazyrope": lazyrope.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def _output(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
