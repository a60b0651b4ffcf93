"""The peers that the project measures: those of ``lazyrope bench``, and kernels of other packages."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from lazyrope.bench import peers as user

from tools.bench import fa3_peer, package_peers, prefix_peers
from tools.bench.cudnn_peer import cudnn_paged


@dataclass(frozen=True)
class Peer:
    make: user.Peer
    package: str = "torch"
    paged: bool = False  # reads pages of the row's size


PEERS = {
    **{name: Peer(make) for name, make in user.PEERS.items()},
    "cudnn_paged": Peer(cudnn_paged, "cudnn", paged=True),
    "flash_attention_3": Peer(fa3_peer.flash_attention_3, "vllm", paged=True),
    "flash_attention_3_contiguous": Peer(fa3_peer.flash_attention_3_contiguous, "vllm"),
    "flashinfer_fa2": Peer(package_peers.flashinfer_fa2, "flashinfer", paged=True),
    "flashinfer_fa3": Peer(package_peers.flashinfer_fa3, "flashinfer", paged=True),
    "flashinfer_contiguous": Peer(package_peers.flashinfer_contiguous, "flashinfer"),
    "flashinfer_xqa": Peer(package_peers.flashinfer_xqa, "flashinfer", paged=True),
    "flash_attention_4": Peer(package_peers.flash_attention_4, "flash_attn.cute", paged=True),
    "flash_attention_4_contiguous": Peer(package_peers.flash_attention_4_contiguous, "flash_attn.cute"),
    "lazy_on_flashinfer": Peer(package_peers.lazy_on_flashinfer, "flashinfer", paged=True),
    "flashinfer_cascade": Peer(prefix_peers.flashinfer_cascade, "flashinfer", paged=True),
    "vllm_flash_attention_3": Peer(prefix_peers.vllm_flash_attention_3, "vllm", paged=True),
}
PAGED = frozenset(name for name, peer in PEERS.items() if peer.paged)


def importable(names: Iterable[str]) -> dict[str, user.Peer]:
    """Returns the peers with these names whose package is installed, and prints the names of the others."""
    found = {}
    for name in names:
        if _is_installed(PEERS[name].package):
            found[name] = PEERS[name].make
        else:
            print(f"{name} is left out: the Python package {PEERS[name].package} is not installed", file=sys.stderr)
    return found


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # the parent package is missing
        return False
