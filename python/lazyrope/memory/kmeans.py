"""Spherical k-means: clusters of vectors by the cosine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .scores import MAX_SCORES, row_chunks

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor

ITERATIONS = 10


def unit(x: Tensor) -> Tensor:
    """Returns vectors of length 1, along the last dimension. A vector of zeros stays as it is."""
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-30)


def nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the greatest inner product of each vector with a centre, and the number of that centre.

    Args:
        x: Vectors, [n, d].
        centres: Vectors of length 1, [k, d].
    """
    best = x.new_empty(len(x)), torch.empty(len(x), dtype=torch.long, device=x.device)
    for rows in row_chunks(len(x), len(centres), MAX_SCORES):
        product = x[rows] @ centres.T
        torch.max(product, dim=-1, out=(best[0][rows], best[1][rows]))
    return best


def means(x: Tensor, cluster: Tensor, clusters: int) -> Tensor:
    """Returns the mean of the rows of each cluster, [clusters, ...]. A cluster without rows has zeros."""
    total = x.new_zeros((clusters, *x.shape[1:])).index_add_(0, cluster, x)
    count = torch.bincount(cluster, minlength=clusters).clamp_min(1)
    return total / count.view(-1, *[1] * (x.dim() - 1))


def clusters_of(x: Tensor, count: int, generator: torch.Generator, iterations: int = ITERATIONS) -> Tensor:
    """Returns the number of each vector's cluster, int64 [n].

    The first centres are vectors of the input, drawn without replacement. A centre that loses all its vectors keeps its
    direction.

    Args:
        x: Vectors, float32 [n, d].
        count: The number of clusters, at most n.
        generator: The generator, on the CPU.
        iterations: The number of Lloyd's steps.
    """
    if count == len(x):
        return torch.arange(count, device=x.device)
    x = unit(x)
    centres = x[torch.randperm(len(x), generator=generator)[:count].to(x.device)]
    for _ in range(iterations):
        _, cluster = nearest(x, centres)
        mean = means(x, cluster, count)
        centres = torch.where(mean.norm(dim=-1, keepdim=True) > 0, unit(mean), centres)
    return nearest(x, centres)[1]


def filled_clusters_of(x: Tensor, count: int, most: int, generator: torch.Generator) -> Tensor:
    """Returns clusters of at most `most` vectors each, by the cosine: int64 [n].

    The centres are those of :func:`clusters_of`. Each takes the nearest of the vectors that want it, and a vector for
    which there is no room goes to the nearest centre that has room.

    Args:
        x: Vectors, float32 [n, d].
        count: The number of clusters, at most n.
        most: The most vectors of a cluster; count * most is at least n.
        generator: The generator, on the CPU.
    """
    x = unit(x)
    wanted = clusters_of(x, count, generator)
    centres = unit(means(x, wanted, count))
    cluster = torch.full((len(x),), -1, dtype=torch.long, device=x.device)
    room = torch.full((count,), most, dtype=torch.long, device=x.device)
    while len(left := (cluster < 0).nonzero().squeeze(1)):
        open_centres = (room > 0).nonzero().squeeze(1)
        cosine, at = nearest(x[left], centres[open_centres])
        nearest_first = cosine.argsort(descending=True, stable=True)
        by_cell = nearest_first[at[nearest_first].argsort(stable=True)]
        counts = torch.bincount(at, minlength=len(open_centres))
        rank = torch.arange(len(left), device=x.device) - (counts.cumsum(0) - counts)[at[by_cell]]
        taken = by_cell[rank < room[open_centres][at[by_cell]]]
        cluster[left[taken]] = open_centres[at[taken]]
        room -= torch.bincount(cluster[left[taken]], minlength=count)
    return cluster
