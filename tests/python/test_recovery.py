"""Compositions of recovery: which tokens are computed again, what each sees, and which requests share them."""

from __future__ import annotations

import lazyrope
import numpy
import pytest
import torch
from lazyrope.recovery import (
    LEVELS,
    Composition,
    PageChoice,
    Part,
    PartSegment,
    PrivateSegment,
    Recomputation,
    Recovery,
    compose,
    recompute,
)

A, B, C = [list(range(first, first + length)) for first, length in ((100, 40), (200, 50), (300, 20))]
PREFIX = (1, 2, 3)


def seen_by(segments: tuple[PartSegment, ...], parts: tuple[Part, ...]) -> dict[int, int]:
    """Returns the token at each position that segments show. No position is shown twice."""
    found: dict[int, int] = {}
    for segment in segments:
        assert segment.length > 0
        for i in range(segment.start, segment.start + segment.length):
            assert segment.base + i not in found
            found[segment.base + i] = parts[segment.part].tokens[i]
    return found


def at_positions(tokens: list[int], first: int = 0) -> dict[int, int]:
    return dict(enumerate(tokens, first))


RECOVERIES = [
    Recovery(),
    Recovery("prefix", PREFIX),
    *(Recovery("first_page", prefix, k) for prefix in ((), PREFIX) for k in (0, 1, 16, 20, 32, 1000)),
    Recovery("guided"),
    Recovery("guided", PREFIX),
]


@pytest.mark.parametrize("recovery", RECOVERIES, ids=str)
@pytest.mark.parametrize("documents", [[], [A], [A, B, C], [C, A, A]], ids=len)
def test_a_prompt_sees_each_token_once_in_order(recovery, documents):
    given = compose(documents, recovery)
    text = [*recovery.shown_prefix, *(token for document in documents for token in document)]
    assert seen_by(given.segments, given.parts) == at_positions(text) and given.position == len(text)
    bases = [segment.base + segment.start for segment in given.segments]
    assert bases == sorted(bases)


@pytest.mark.parametrize("recovery", RECOVERIES, ids=str)
def test_parts_see_earlier_parts_alone(recovery):
    given = compose([A, B, C], recovery)
    for i, part in enumerate(given.parts):
        assert all(segment.part < i for segment in part.segments)


@pytest.mark.parametrize(("count", "prefix"), [(16, ()), (20, PREFIX), (32, PREFIX), (1000, ())])
def test_the_first_tokens_of_all_documents_but_the_first_are_computed_over_everything_before(count, prefix):
    given = compose([A, B, C], Recovery("first_page", prefix, count))
    documents, before = [A, B, C], list(prefix)
    assert given.overlays[0] is None and given.documents[0] is not None
    for document, stored, overlay in zip(documents, given.documents, given.overlays, strict=True):
        if overlay is not None:
            assert given.parts[overlay].tokens == document[:count]
            seen = seen_by(given.parts[overlay].segments, given.parts)
            assert seen == at_positions(before, -len(before))
        assert (stored is None) == (overlay is not None and count >= len(document))
        if stored is not None:
            assert given.parts[stored].tokens == document
            assert seen_by(given.parts[stored].segments, given.parts) == at_positions(list(prefix), -len(prefix))
        before += document
    assert given.recomputed_tokens == min(count, len(B)) + min(count, len(C))


def test_an_overlay_sees_the_overlays_before_it():
    given = compose([A, B, C], Recovery("first_page", (), 16))
    first, second = given.overlays[1:]
    assert first in {segment.part for segment in given.parts[second].segments}
    shared = [(s.start, s.length) for s in given.parts[second].segments if s.part == given.documents[1]]
    assert shared == [(16, len(B) - 16)]


def test_level_none_has_a_part_for_each_document():
    assert compose([A, B]).parts == (Part(A), Part(B))
    assert compose([A, B]).segments == (PartSegment(0, 0, 0, 40), PartSegment(1, 40, 0, 50))
    assert compose([A, B], Recovery("first_page", (), 0)) == compose([A, B])
    assert compose([A, B], Recovery("none", PREFIX)) == compose([A, B])


def chosen_by(choice: PageChoice, *best: int) -> list[int]:
    """Returns the chosen tokens if these pages have the greatest scores, the first of them the greatest one."""
    scores = [0.0] * len(choice.pages)
    for rank, page in enumerate(best):
        scores[page] = 1 / (1 + rank)
    return choice.tokens(scores)


def test_pages_begin_with_their_documents_and_none_is_of_the_first():
    choice = PageChoice((40, 50, 20), 0.5, 0)
    assert choice.pages == [range(40, 56), range(56, 72), range(72, 88), range(88, 90), range(90, 106), range(106, 110)]
    assert PageChoice((40, 50, 20), 0.5, 20).pages == [range(56, 72), range(72, 88), range(88, 90)]
    assert PageChoice((40,), 0.5, 0).pages == PageChoice((), 0.5, 16).pages == []


def test_the_best_pages_are_chosen_until_there_is_the_share():
    choice = PageChoice((40, 50, 20), 0.2, 0)  # 22 tokens
    assert choice.needs_scores
    assert chosen_by(choice, 2, 4) == [*range(72, 88), *range(90, 106)]
    assert chosen_by(choice, 5, 1) == [*range(40, 56), *range(56, 72), *range(106, 110)]  # equal scores: the first page
    assert len(chosen_by(choice, 3, 5, 0)) == 2 + 4 + 16
    assert len(chosen_by(choice, 3, 5, 0, 1)) == 22, "the share is reached"


def test_first_tokens_are_always_chosen_and_count():
    choice = PageChoice((40, 50, 20), 0.2, 4)
    assert choice.always == [*range(40, 44), *range(90, 94)]
    assert chosen_by(choice, 2) == [*range(40, 44), *range(72, 88), *range(90, 94)]
    assert chosen_by(choice, 0, 1) == [*range(40, 56), *range(56, 72), *range(90, 94)], "16 of 22 after the first page"


@pytest.mark.parametrize("lengths", [(), (40,), (5, 7), (40, 50, 20), (1, 16, 1, 33)])
@pytest.mark.parametrize("first", [0, 3, 16, 100])
def test_shares_are_reached_within_a_page(lengths, first):
    for share in (0, 0.01, 0.15, 0.5, 0.9, 1):
        choice = PageChoice(lengths, share, first)
        chosen = [choice.tokens([float(i * i * k % 7) for i in range(len(choice.pages))]) for k in (0, 1, 3)]
        always = sum(min(first, n) for n in lengths[1:])
        for tokens in chosen:
            assert len(tokens) <= choice.max_tokens <= sum(lengths[1:])
            assert len(tokens) >= min(share * sum(lengths), sum(lengths[1:])) and len(tokens) >= always
            assert len(tokens) < max(share * sum(lengths) + 16, always + 1)
        if not choice.needs_scores:
            assert chosen[0] == chosen[1] == chosen[2]


def shown_by(composition: Composition, again: Recomputation) -> tuple[dict[int, int], dict[int, int]]:
    """Returns the shared tokens and the private tokens at each position that the prompt sees."""
    stored = tuple(s for s in again.segments if isinstance(s, PartSegment))
    private: dict[int, int] = {}
    for segment in again.segments:
        if isinstance(segment, PrivateSegment):
            assert segment.length > 0
            for i in range(segment.length):
                assert again.positions[segment.slot + i] == segment.position + i not in private
                private[segment.position + i] = again.tokens[segment.slot + i]
    return seen_by(stored, composition.parts), private


@pytest.mark.parametrize("prefix", [(), PREFIX])
@pytest.mark.parametrize(
    ("chosen", "segments"),
    [
        ([], 3),
        ([*range(40, 56)], 4),
        ([*range(56, 72)], 5),
        ([*range(40, 56), *range(72, 88)], 6),
        ([*range(56, 90), *range(90, 106)], 4),  # one run over the end of a document
        ([*range(20, 110)], 2),  # and over a whole one
        ([*range(110)], 1),
        ([0, 109], 5),
    ],
)
def test_chosen_tokens_replace_those_of_the_documents(prefix, chosen, segments):
    composition = compose([A, B, C], Recovery("guided", prefix))
    again = recompute(composition, chosen)
    stored, private = shown_by(composition, again)
    text = [*prefix, *A, *B, *C]
    assert sorted([*stored, *private]) == list(range(len(text))) and stored | private == at_positions(text)
    assert sorted(private) == again.positions == [len(prefix) + i for i in chosen]
    assert again.indices == [
        [i for i in range(len(tokens)) if first + i in chosen] for tokens, first in ((A, 0), (B, 40), (C, 90))
    ]
    assert len(again.segments) == segments + (len(prefix) > 0)
    starts = [s.position if isinstance(s, PrivateSegment) else s.base + s.start for s in again.segments]
    assert starts == sorted(starts)


def test_level_guided_stores_what_level_prefix_stores():
    guided = compose([A, B], Recovery("guided", PREFIX, 20, 0.3))
    assert guided.parts == compose([A, B], Recovery("prefix", PREFIX)).parts
    assert guided.choice == PageChoice((40, 50), 0.3, 20) and guided.recomputed_tokens == 0
    assert compose([A, B], Recovery("guided")).parts == compose([A, B]).parts


@pytest.mark.parametrize("prefix", [(), PREFIX])
def test_level_ape_stores_what_level_prefix_stores_and_reads_the_documents_apart(prefix):
    ape = compose([A, B, A], Recovery("ape", prefix, attention_temperature=0.5, lse_scale=2))
    other = compose([A, B, A], Recovery("prefix", prefix) if prefix else Recovery())
    assert (ape.parts, ape.segments, ape.position) == (other.parts, other.segments, other.position)
    assert other.group is None and other.rest == other.segments and ape.choice is None and ape.recomputed_tokens == 0
    assert (ape.group.temperature, ape.group.lse_scale) == (0.5, 2.0)
    assert (*ape.rest, *ape.group.segments) == ape.segments and len(ape.rest) == bool(prefix)
    assert compose([], Recovery("ape", prefix)).group.segments == ()


def test_documents_may_come_from_a_generator():
    given = compose((each for each in (A, B)), Recovery("first_page", PREFIX))
    assert given == compose([A, B], Recovery("first_page", PREFIX)) and len(given.parts) == 4


def identity(part: Part) -> tuple[tuple[int, ...], str]:
    return tuple(part.tokens), part.context


def test_documents_after_other_prefixes_are_other_entries():
    contexts = [compose([A], recovery).contexts[-1] for recovery in (Recovery(), Recovery("prefix", PREFIX))]
    contexts += [compose([A], Recovery("prefix", prefix)).contexts[-1] for prefix in ((1, 2), (2, 1, 3), (1, 2, 3, 4))]
    assert len(set(contexts)) == 5 and contexts[0] == ""
    with_overlays = compose([B, A], Recovery("first_page", PREFIX))
    assert identity(with_overlays.parts[2]) == identity(compose([A], Recovery("prefix", PREFIX)).parts[1])
    assert identity(with_overlays.parts[0]) == identity(compose([list(PREFIX)]).parts[0])  # a prefix is a document


def test_overlays_are_shared_by_requests_with_equal_texts_before_them():
    def overlays(documents: list[list[int]], count: int = 16, prefix: tuple[int, ...] = ()) -> list[object]:
        given = compose(documents, Recovery("first_page", prefix, count))
        return [None if i is None else identity(given.parts[i]) for i in given.overlays]

    _, first, second = overlays([A, B, C])
    assert overlays([A, B, C, B])[:3] == [None, first, second] and overlays([A, B])[1] == first
    assert overlays([A, [*B[:16], 7]])[1] == first  # the same first tokens
    others = [overlays([C, B])[1], overlays([A, C])[1], overlays([[*A, 7], B])[1], overlays([A, B], 32)[1]]
    others += [overlays([A, B], 16, PREFIX)[1], overlays([A, [*B, 7], C])[2], overlays([A[:20], [*A[20:], *B], C])[2]]
    others += [overlays([A, B, B])[2], overlays([A, C], 32)[1]]
    assert len({first, second, *others}) == 2 + len(others)


def test_a_request_changes_the_values_that_it_gives():
    engines = Recovery("first_page", PREFIX, 32)
    assert engines.changed() == engines
    assert engines.changed("prefix") == Recovery("prefix", PREFIX, 32)
    assert engines.changed("none").shown_prefix == ()
    assert engines.changed(prefix=[5], overlay_tokens=0) == Recovery("first_page", (5,), 0)
    assert Recovery().changed("prefix", [1]) == Recovery("prefix", (1,))
    assert engines.changed("guided", share=1) == Recovery("guided", PREFIX, 32, 1.0)
    assert engines.changed("ape", lse_scale=1) == Recovery("ape", PREFIX, 32, lse_scale=1.0)
    assert Recovery("ape").changed(attention_temperature=0.5) == Recovery("ape", attention_temperature=0.5)
    assert Recovery("guided", (), 16, 0.3, 50).changed(overlay_tokens=0) == Recovery("guided", (), 0, 0.3, 50)


MISTAKES = {
    "recovery = 'guide'; it must be one of " + ", ".join(LEVELS): lambda: Recovery("guide"),
    'recovery = "prefix" needs prefix=': lambda: Recovery("prefix"),
    "overlay_tokens = -1; it must be an integer, at least 0": lambda: Recovery("first_page", (), -1),
    "overlay_tokens = 1.5; it must be an integer, at least 0": lambda: Recovery("first_page", (), 1.5),
    "tokens must be a one-dimensional sequence of 64-bit integers": lambda: Recovery("prefix", ("a",)),
    'prefix is given; recovery = "none" does not use it': lambda: Recovery().changed(prefix=[1]),
    'overlay_tokens is given; recovery = "prefix" does not use it': lambda: Recovery().changed("prefix", [1], 16),
    "share = 1.1; it must be a number, 0 to 1": lambda: Recovery("guided", share=1.1),
    "share = nan; it must be a number, 0 to 1": lambda: Recovery("guided", share=float("nan")),
    "share = True; it must be a number, 0 to 1": lambda: Recovery("guided", share=True),
    "share = '1'; it must be a number, 0 to 1": lambda: Recovery("guided", share="1"),
    "question_tokens = 0; it must be an integer, at least 1": lambda: Recovery("guided", question_tokens=0),
    "attention_temperature = 0; it must be a finite number": lambda: Recovery("ape", attention_temperature=0),
    "attention_temperature = inf; it must be a finite": lambda: Recovery("ape", attention_temperature=float("inf")),
    "lse_scale = -1; it must be a finite number greater than 0": lambda: Recovery("ape", lse_scale=-1),
    "lse_scale = True; it must be a finite number": lambda: Recovery("ape", lse_scale=True),
    'lse_scale is given; recovery = "guided" does not use it': lambda: Recovery("guided").changed(lse_scale=1.0),
    "select_layers = 0; it must be an integer, at least 1": lambda: Recovery("guided", select_layers=0),
    'share is given; recovery = "first_page" does not use it': lambda: Recovery("first_page").changed(share=0.5),
    "a document is empty": lambda: compose([A, []]),
    "recovery = \\['none'\\]; it must be one of": lambda: Recovery(["none"]),
    "recovery = array.*; it must be one of": lambda: Recovery(numpy.array(["none", "prefix"])),
    "prefix = 5; it must be a sequence of token ids": lambda: Recovery("prefix", 5),
    "prefix = None; it must be a sequence of token ids": lambda: Recovery("prefix", None),
    "prefix = 6; it must be a sequence of token ids": lambda: Recovery().changed("prefix", 6),
    "prefix = 'text'; it must be a sequence of token ids": lambda: Recovery("prefix", "text"),
    r"overlay_tokens = tensor\(1.5000\); it must be an int": lambda: Recovery("first_page", (), torch.tensor(1.5)),
    "recovery = 'prefix'; it must be a Recovery, such as": lambda: compose([A], "prefix"),
    "documents = 5; it must be a list, and each document a sequence of token ids": lambda: compose(5),
    "documents = 'text'; it must be a list": lambda: compose("text"),
    r"documents\[1\] = 5; it must be a sequence of token ids": lambda: compose([A, 5]),
    r"documents\[0\] = 'text'; it must be a sequence of token ids": lambda: compose(["text"]),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_refused(message):
    with pytest.raises(lazyrope.SpecError, match=message):
        MISTAKES[message]()
