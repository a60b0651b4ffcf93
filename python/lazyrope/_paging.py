"""The free pages of a pool, and page lists in device memory."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from .errors import SpecError


@dataclass(eq=False)
class Pages:
    """A run of tokens and its pages.

    Attributes:
        num_tokens: The number of tokens.
        num_bytes: The bytes of the pages.
        first_page: The index in :attr:`PageLists.array` at which the page list begins.
        page_ids: The page list.
    """

    num_tokens: int
    num_bytes: int
    first_page: int
    page_ids: tuple[int, ...] = field(repr=False)

    @property
    def lead(self) -> int:
        """The slot of the first token in its page. It is 0, for each run in the store begins with its own page."""
        return 0

    @property
    def num_pages(self) -> int:
        return len(self.page_ids)


def count(owners: Iterable[Pages]) -> int:
    """Returns the number of pages of all owners."""
    return sum(owner.num_pages for owner in owners)


def pages_and_tokens(lengths: Sequence[int], page_size: int) -> tuple[int, int]:
    """Returns the pages that runs of these lengths need, and their tokens."""
    return sum(-(-length // page_size) for length in lengths), sum(lengths)


class Paging:
    """The free pages of a pool. It is not thread-safe.

    Attributes:
        lists: The page lists of all pages that are taken.
    """

    def __init__(self, num_pages: int, device: torch.device) -> None:
        self._num_pages = num_pages
        self._free = list(reversed(range(num_pages)))
        self.lists = PageLists(num_pages, device)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, num_pages: int) -> tuple[int, tuple[int, ...]]:
        """Takes pages, at least one and no more than are free.

        Returns:
            The index at which their page list begins, and the page list.
        """
        page_ids = tuple(self._free[: -num_pages - 1 : -1])
        first_page = self.lists.add(page_ids)
        del self._free[-num_pages:]  # after the write, so that the pages stay free if it fails
        return first_page, page_ids

    def free_pages(self, pages: Pages) -> None:
        self.lists.remove(pages)
        self._free.extend(reversed(pages.page_ids))

    def reset(self, owners: Sequence[Pages]) -> None:
        """Frees every page and every cell that none of these runs has."""
        taken = {page for owner in owners for page in owner.page_ids}
        self._free = [page for page in reversed(range(self._num_pages)) if page not in taken]
        self.lists.reset(owners)

    def check(self, owners: Sequence[Pages]) -> None:
        """Asserts that each page and each cell is free or has one owner, and that the page lists are right."""
        pages = sorted(self._free + [page for owner in owners for page in owner.page_ids])
        assert pages == list(range(self._num_pages)), f"free and owned pages are {pages}, not each page once"
        self.lists.check(owners)


class PageLists:
    """Page lists in one device array that cannot fragment.

    The array is divided into cells, whose widths are powers of two. A page list takes a cell of the least width that
    holds it. Each width has as many cells as the pool has pages for lists of that width, so a list finds a cell
    whenever its pages exist. The array has about 2 num_pages (log2(num_pages) + 1) entries.

    Attributes:
        array: The page lists, int32.
    """

    def __init__(self, num_pages: int, device: torch.device) -> None:
        self._cells: list[range] = []  # the first entries of the cells of each width
        end = 0
        for width in (1 << i for i in range(_width_class(num_pages) + 1)):
            shortest = width // 2 + 1
            self._cells.append(range(end, end + num_pages // shortest * width, width))
            end = self._cells[-1].stop
        self._free = [list(reversed(cells)) for cells in self._cells]
        # The array is zeroed, so that an entry that is read by mistake names a page of the pool.
        self.array = torch.zeros(end, dtype=torch.int32, device=device)

    def add(self, page_ids: Sequence[int]) -> int:
        """Writes a page list, and returns the index of its first entry."""
        free = self._free[_width_class(len(page_ids))]
        first = free[-1]
        # The source is pageable, so CUDA stages the bytes before copy_ returns. A blocking copy waits for the stream.
        self.array[first : first + len(page_ids)].copy_(torch.tensor(page_ids, dtype=torch.int32), non_blocking=True)
        return free.pop()

    def remove(self, pages: Pages) -> None:
        self._free[_width_class(pages.num_pages)].append(pages.first_page)

    def reset(self, owners: Sequence[Pages]) -> None:
        taken = {owner.first_page for owner in owners}
        self._free = [[first for first in reversed(cells) if first not in taken] for cells in self._cells]

    def check(self, owners: Sequence[Pages]) -> None:
        host = self.array.tolist()
        used: list[list[int]] = [[] for _ in self._cells]
        for owner in owners:
            used[_width_class(owner.num_pages)].append(owner.first_page)
            listed = tuple(host[owner.first_page : owner.first_page + owner.num_pages])
            assert listed == owner.page_ids, f"{owner} has page list {listed}, not {owner.page_ids}"
        for cells, free, taken in zip(self._cells, self._free, used, strict=True):
            assert sorted(free + taken) == list(cells), f"cells {cells} are not exactly {free} and {taken}"


def _width_class(length: int) -> int:
    """Returns the logarithm of the next power of two."""
    return (length - 1).bit_length()


def bytes_of(budget: int | str) -> int:
    """Returns the bytes of a budget: a number, or text as :class:`lazyrope.documents.DocumentStore` takes it.

    Raises:
        SpecError: The text is no budget.
    """
    if not isinstance(budget, str):
        return operator.index(budget)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:iB)?|B)?\s*", budget, re.ASCII | re.IGNORECASE)
    if not match:
        decimal = re.fullmatch(r"\s*([\d.]+)\s*([KMGT])B\s*", budget, re.ASCII | re.IGNORECASE)
        hint = f': write "{decimal[1]}{decimal[2].upper()}iB"' if decimal else ""
        raise SpecError(
            f"budget is {budget!r}; it must be bytes, or a number with K, M, G or T, KiB, MiB, GiB or TiB{hint}"
        )
    number, unit = match.groups()
    return int(Fraction(number) * 1024 ** " KMGT".index((unit or " ").upper()))
