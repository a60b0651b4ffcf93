"""Parses enough C++ of the device text to move a statement past its neighbour."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools.check_layers import QUOTED_OR_COMMENT, blank, line_of

OPENING = {"(": ")", "{": "}", "[": "]"}
PREPROCESSOR = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
WORD = re.compile(r"[A-Za-z_]\w*")
# The name of a function that is called, or of a type whose variable is declared.
USED = re.compile(r"([A-Za-z_]\w*)\s*(?:<[^<>;{}]*(?:<[^<>;{}]*>[^<>;{}]*)*>)?\s*(?:\w+\s*)?[({;]")
CONDITIONAL = re.compile(r"(?:if\s+constexpr|if|for|while|switch)\s*(?=\()")
TYPE = re.compile(r"(?:template\b.*)?\b(?:class|struct|union|enum)\b", re.DOTALL)
TEMPLATE_ARGUMENTS = re.compile(r"\s*<[^<>;{}]*>")
LONGEST_QUALIFIERS = 200  # characters before a call that are searched for its qualifiers
QUALIFIERS = re.compile(r"(?:\w+\s*(?:::|\.|->)\s*)*(?:template\s+)?$")


@dataclass(frozen=True)
class Span:
    begin: int
    end: int


@dataclass(frozen=True)
class Call:
    """A call with its qualifiers, such as `Team::sync()` or `cp_async_wait_group<0>()`."""

    name: str
    span: Span
    name_at: int


class Text:
    """A template file: its text, and its code, which has blanks instead of comments, literals and directives."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.code = PREPROCESSOR.sub(blank, QUOTED_OR_COMMENT.sub(blank, text))
        self._used: dict[Span, set[str]] = {}

    def line(self, at: int) -> int:
        return line_of(self.text, at)

    def of(self, span: Span) -> str:
        return self.code[span.begin : span.end]

    def uses(self, span: Span) -> set[str]:
        """Returns the names of functions and constructors that the span may call."""
        if span not in self._used:
            words = WORD.finditer(self.code, span.begin, span.end)
            self._used[span] = {word[0] for word in words if USED.match(self.code, word.start(), span.end)}
        return self._used[span]

    @cached_property
    def _braces(self) -> list[Span]:
        """Returns the spans of all pairs of braces, inner ones first."""
        open_at, pairs = [], []
        for at, char in enumerate(self.code):
            if char == "{":
                open_at.append(at)
            elif char == "}":
                pairs.append(Span(open_at.pop(), at + 1))
        return pairs

    def block_of(self, at: int) -> Span:
        """Returns the span between the innermost braces around a position."""
        pair = next(pair for pair in self._braces if pair.begin < at < pair.end)
        return Span(pair.begin + 1, pair.end - 1)

    def _skip_space(self, at: int) -> int:
        while at < len(self.code) and self.code[at].isspace():
            at += 1
        return at

    def closing(self, at: int) -> int:
        """Returns the position after the bracket that closes the one at `at`."""
        depth = 0
        for i in range(at, len(self.code)):
            depth += (self.code[i] in OPENING) - (self.code[i] in OPENING.values())
            if depth == 0:
                return i + 1
        raise ValueError(f"{self.path}:{self.line(at)}: this bracket is not closed")

    def statements(self, block: Span) -> Iterator[Span]:
        at = self._skip_space(block.begin)
        while at < block.end:
            end = self._statement_end(at)
            yield Span(at, end)
            at = self._skip_space(end)

    def _statement_end(self, at: int) -> int:
        if self.code[at] == "{":
            return self.closing(at)
        if match := CONDITIONAL.match(self.code, at):
            end = self._statement_end(self._skip_space(self.closing(match.end())))
            following = self._skip_space(end)
            if match[0].startswith("if") and re.match(r"else\b", self.code[following:]):
                end = self._statement_end(self._skip_space(following + len("else")))
            return end
        i = at
        while self.code[i] != ";":
            if self.code[i] not in OPENING:
                i += 1
                continue
            is_body = self.code[i] == "{" and self.code[:i].rstrip().endswith((")", " const", " noexcept"))
            i = self.closing(i)
            if is_body and not TYPE.match(self.code, at):
                return i
        return i + 1

    def before(self, at: int) -> int:
        """Returns the position after the last code before `at`, so that an insertion is not in a comment."""
        return len(self.code[:at].rstrip())

    def calls(self, names: set[str]) -> Iterator[Call]:
        """Returns the calls of functions with these names, without their definitions."""
        return (call for call in self._calls if call.name in names)

    @cached_property
    def _calls(self) -> list[Call]:
        return [call for match in WORD.finditer(self.code) if (call := self._call(match)) is not None]

    def _call(self, word: re.Match[str]) -> Call | None:
        end = word.end()
        if arguments := TEMPLATE_ARGUMENTS.match(self.code, end):
            end = arguments.end()
        if self.code[end : end + 1] != "(":
            return None
        qualifiers = QUALIFIERS.search(self.code, max(0, word.start() - LONGEST_QUALIFIERS), word.start())
        begin = word.start() - len(qualifiers[0])  # type: ignore[index]
        before = self.code[max(0, begin - LONGEST_QUALIFIERS) : begin].rstrip()
        is_definition = bool(WORD.search(before[-1:])) and not before.endswith(("return", "else"))
        if is_definition or before.endswith((">", "&", "*")):
            return None
        return Call(word[0], Span(begin, self.closing(end)), word.start())


@dataclass(frozen=True)
class Function:
    name: str
    span: Span  # from its first word to the end of its body
    body: Span  # between the braces


DEFINITION = re.compile(
    r"^[ \t]*(?:template\s*<[^\n]*>\s*)?(?:LAZYROPE_DEVICE(?:_CALL)?|inline|constexpr)\s[^;{}=]*?(\w+)\s*(?=\()",
    re.MULTILINE,
)


def functions(text: Text) -> Iterator[Function]:
    for match in DEFINITION.finditer(text.code):
        at = text.closing(match.end())
        while at < len(text.code) and text.code[at] not in "{;":
            at = text.closing(at) if text.code[at] in OPENING else at + 1
        if text.code[at : at + 1] == "{":
            end = text.closing(at)
            yield Function(match[1], Span(match.start(), end), Span(at + 1, end - 1))


def templates(root: Path) -> dict[str, Text]:
    files = sorted(file for file in root.rglob("*") if file.suffix in (".cuh", ".h", ".in"))
    return {name: Text(name, file.read_text()) for file in files if (name := file.relative_to(root).as_posix())}
