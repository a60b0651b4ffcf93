"""Refuses comments that are no sentences, and the words and names that the glossary replaces.

python tools/check_prose.py [--root DIR] [--stats] [--list FILE...]

Prints one line per complaint, FILE:LINE: what is wrong and what to say instead. Then it prints the numbers of each
top-level folder, and exits with 1 if there is a complaint. At most 2% of a file's comments and docstrings may open with
a fragment, or one of fewer than 50.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.check_layers import CPP_SUFFIXES, MAY_INCLUDE, QUOTED_OR_COMMENT, blank, line_of

# A file with at least MANY_BLOCKS comments and docstrings may have MAX_SHARE fragments, a shorter one MAX_FEW.
MANY_BLOCKS = 50
MAX_SHARE = 0.02
MAX_FEW = 1

FOLDERS = tuple(MAY_INCLUDE)
PYTHON_SUFFIXES = (".py", ".pyi")
SUFFIXES = (*CPP_SUFFIXES, *PYTHON_SUFFIXES, ".sh", ".cmake", ".toml", ".md", "Makefile", "CMakeLists.txt")
NO_SUFFIX = (".ci/run", "tests/gpu/run")
NOT_CHECKED = re.compile(r"(?:.*/)?(?:golden|results|recordings|__pycache__)/[^/]*(?<!\.cpp)")
# These files spell out the words that the glossary replaces.
SPELL_OUT = (
    "tools/check_prose.py",
    "tests/python/test_check_prose.py",
    "python/docs/changelog.md",
    "python/docs/contributing/style.md",
)
# The records of experiments use the names that the code had when they were written.
RECORDS = "tests/gpu/experiments/"


@dataclass(frozen=True)
class Forbidden:
    """A word or a name that the glossary replaces.

    `word` is matched against whole words of comments, docstrings, literals and Markdown, and `name` against names in
    lower snake case: kTurnedBytes as k_turned_bytes. A hit inside a match of `allowed` is no complaint. The row applies
    to files whose path begins with a match of `paths`.
    """

    say: str
    word: str = ""
    name: str = ""
    allowed: str = ""
    paths: str = ""


def in_name(words: str) -> str:
    """Returns the pattern of a name that has one of `words` between its underscores."""
    return rf"(?:^|(?<=_))(?:{words})(?=_|$|\()"


DEVICE_CODE = r"templates/|codegen/|tests/(?:isa|unit|support)/|runtime/step"
BENCH_LIMITS = r"tools/bench/\w+\.py|tools/\w+_table\.py"

GLOSSARY = (
    Forbidden(
        "rotate; revolution; transposed; interleaved; in turn",
        word=r"turn(?:s|ed|er|ers|ing)?",
        name=in_name(r"(?:un)?turn(?:s|ed|er|ers|ing)?"),
        allowed=r"\b(?:in turn|out of turn|(?:takes?|taking|taken|took) (?:\w+ )?turns?"
        r"|turn(?:s|ed|ing)? (?:\w+ )?(?:on|off|out|away|down)|turn(?:s|ed|ing)?\b[^.;:()]{0,60} into"
        r"|(?:chat|user|system|assistant)(?:'?s)? turns?|turns? of (?:a|the) (?:chat|conversation))\b"
        r"|turn\((?:question|[\"'])"
        r"|(?:takes?|taking)_turns?|in_turn|(?:chat|user|system|assistant)_turns?|turned_(?:away|off|on)",
    ),
    Forbidden("KernelConfig", word="tile plans?", name="tile_plan"),
    Forbidden("TileConfig", word="attend plans?", name="attend_plan"),
    Forbidden("configs()", word=r"candidates\(\)", name=r"^candidates\(\)$"),
    Forbidden("warps_m", name=in_name("row_warps")),
    Forbidden("warps_n", name=in_name("key_warps")),
    Forbidden("warp_m", name=in_name("warp_rows")),
    Forbidden("warp_n", name=in_name("warp_keys")),
    Forbidden("mma_n", name=in_name("step_keys")),
    Forbidden("heads_per_work_tile", name=in_name("item_heads")),
    Forbidden(
        "Pipeline, its producer side or its consumer side", word="hand-?overs?", name="handover|fill_side|use_side"
    ),
    Forbidden("acquire, commit, wait, release", name=r"^(?:know|awaited)\(\)$", paths="templates/"),
    Forbidden("work tile", word="items? of work|work items?"),
    Forbidden("work tile", word="items?", paths="templates/"),
    Forbidden("work_tile", name=in_name("items?"), paths="templates/"),
    Forbidden(
        "WorkTile, work_tile",
        name="^item$|" + in_name("item_(?:ptr|rows|split|cost|start|extent|result|tile)|(?:no|num|max)_items?"),
        paths=DEVICE_CODE,
    ),
    Forbidden("again", word="anew", name=in_name("anew")),
    Forbidden("is at, is in, starts at", word="lies?|lain", name=in_name("lies?")),
    Forbidden(
        "after",
        word=r"one behind the \w+|behind (?:it|them|one another|another|each other|the (?:other|last|first))",
        allowed=r"(?:reasons?|ideas?|hid(?:e|es|den|ing)) behind \w+",
    ),
    Forbidden("loaded, copied, given", word="brought", name=in_name("brought")),
    Forbidden("load, copy, give", word="bring(?:s|ing)?", name=in_name("brings?"), paths=DEVICE_CODE),
    Forbidden("softmax_step; apply the softmax weights", word="weigh(?:s|ed|ing)?", name=in_name("weigh(?:s|ed|ing)?")),
    Forbidden("store_partial", name=in_name("leave_rows")),
    Forbidden("baseline; default", word="usual", name=in_name("usual"), allowed="(?:as|than)[ _]usual"),
    Forbidden("benchmark", word="contests?", name=in_name("contests?")),
    Forbidden("candidate", word="contenders?", name=in_name("contenders?")),
    Forbidden("conformance kernel", word="witness(?:es)?", name=in_name("witness(?:es)?")),
    Forbidden("document fixture", allowed="(?:a|the) shelf", word="shelf|shelves", name=in_name("shelf|shelves")),
    Forbidden("clear_cache()", word=r"forget\(\)", name=r"^forget(?:\(\))?$"),
    Forbidden("stage, slot_index", name=in_name("places?"), allowed="in_place", paths="templates/"),
    Forbidden("stage", word="places? (?:of|in) (?:a|the|its|each) rings?|ring's places?", name="ring_place"),
    Forbidden(
        "KV split", word="parts? of (?:a|the|its|each|one|that) tiles?|parts of tiles|tile's parts?|fixed parts?"
    ),
    Forbidden(
        "split, num_splits, combine",
        name=in_name(
            "(?:merge|num|has|most|fixed|needless|dealt|lengthen|row|short)_parts?|k_parts(?=_*$)|part_(?:record|blocks|begin|cost)"
        ),
    ),
    Forbidden("met, not met; pass, fail", word="kept|missed", name=in_name("kept|missed"), paths=BENCH_LIMITS),
    Forbidden("the thread, the warp, the caller", word="those who|whoever|nobody", paths="templates/"),
    Forbidden("the file in tests/gpu/results or the page of the documents", word=r"NOTES\.md"),
)

# A block that opens with one of these is a fragment, unless it is a question.
NEVER_OPEN = (
    "and, as few, as many, as much, behind, beside, but for, else, how, in place of, not, of, or, so that, that,"
    " the same of, those, what, whatever, whether, which, who, whoever, whom, whose, why"
)
# A block that opens with one of these is a sentence only with a main clause.
PREPOSITIONS = (
    "across, after, against, among, at, before, between, beyond, by, during, except, for, from, in, inside, instead of,"
    " into, like, on, outside, over, per, through, to, under, unlike, upon, via, with, within, without"
)
CONJUNCTIONS = "as, because, if, once, since, unless, until, when, where, while"
# After these a comma is enough, because good comments often continue with an imperative: "If absent, compile it."
COMMA_IS_ENOUGH = "after, because, before, if, once, since, to, unless, until, when, while"
# A block that opens with one of these may be a noun phrase, which is_noun_phrase() recognises.
COUNTS = "all, also, any, both, empty, everything, none, nothing, only, some, these, two, each, every, one"
# After these a block without a verb is a noun phrase.
VERB_WANTED = "each, every, one"
# A comment that follows code may be a noun phrase, but may not open with one of these.
NEVER_TRAIL = "of, what, who, whose"
# The sentences of Markdown are too long for the rules above. There only blocks with these openers are fragments.
NEVER_IN_MARKDOWN = "of, those, what, whether, who, whose"

FINITE = (
    "is|are|was|were|has|have|had|must|may|might|can|cannot|could|will|would|shall|should|does|do|did|isn't|aren't|can't"
    "|took|ran|gave|came|went|made|became|held"
)
RELATIVE = r"(?:that|which|who|whom|whose|what|where|how|whether)\b"
IMPERATIVE = (
    "add|allow|avoid|build|call|check|choose|compile|copy|do|ensure|expect|give|ignore|install|keep|let|load|look|make|note"
    "|pass|prefer|print|raise|read|return|round|run|say|see|set|show|skip|start|stop|store|take|test|treat|try|use|write"
)
PRONOUN = r"(?:i|it|they|we|you|there|both|all|others|everyone|these|those)(?:'\w+)?"


def any_of(words: str) -> str:
    return "|".join(re.escape(word.strip()) for word in words.split(","))


def opener(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{any_of(words)})\b(?!-)", re.IGNORECASE)


FRAGMENT = opener(NEVER_OPEN)
TRAILING_FRAGMENT = opener(NEVER_TRAIL)
MARKDOWN_FRAGMENT = opener(NEVER_IN_MARKDOWN)
PREPOSITION = opener(PREPOSITIONS)
CONJUNCTION = opener(CONJUNCTIONS)
COMMA = opener(COMMA_IS_ENOUGH)
NEEDS_CLAUSE = opener(f"{PREPOSITIONS}, {CONJUNCTIONS}")
COUNT = re.compile(rf"({any_of(COUNTS)})\b(?!-)\s*([:,;]|\w+|$)", re.IGNORECASE)
# The opener belongs to the subject: "At least 16 rows are copied."
AT_LEAST = re.compile(rf"at (?:least|most) .*\b(?:{FINITE})\b", re.IGNORECASE)
# The verb follows soon, not in a relative clause: "On a GPU the kernels are compiled", "For some layers we need".
EARLY_VERB = re.compile(rf"\w+ (?:(?!{RELATIVE})[\w'-]+ ){{2,8}}(?:{FINITE})\b", re.IGNORECASE)
EARLY_SUBJECT = re.compile(rf"\w+ (?:(?!{RELATIVE})[\w'-]+ ){{1,8}}(?:we|you|they)\b", re.IGNORECASE)
# "All of the threads have arrived" opens with a subject, but these matches are no subjects.
NO_PART = re.compile(r"also (?:of|\d+)\b|\w+ of (?:which|whom|what)\b", re.IGNORECASE)
# "All threads of the CTA: its work tiles" has no verb before the colon.
NO_VERB_BEFORE_COLON = re.compile(r"all \w+(?: of (?:a|each|its|the) [\w-]+)?$", re.IGNORECASE)
# These words after a comma begin no main clause.
NO_CLAUSE = re.compile(
    rf"(?!at (?:least|most))(?:{any_of(PREPOSITIONS)}|{any_of(CONJUNCTIONS)}|{RELATIVE}|\w+ of (?:which|whom|them)"
    r"|and|or|but|not|nor|of|so|than|even|likewise|too)\b",
    re.IGNORECASE,
)
ADVERB = re.compile(r"^(?:also|just|only|please|simply|then)\s+", re.IGNORECASE)
MAIN_CLAUSE = re.compile(rf"(?:(?:{PRONOUN}|{IMPERATIVE})\b .|\S+ .*?\b(?:{FINITE}|(?!\w*'s)\w\w+s)\b)", re.IGNORECASE)
VERB = re.compile(rf"\S+ .*\b(?:{FINITE}|\w\w+s)\b")
END = re.compile(r"[.:;!?](?=\s|$)")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|cf)\.")
QUOTED = re.compile(r"``[^`]*``|`[^`]*`|\([^()]*\)")


def has_main_clause(sentence: str) -> bool:
    """Tells whether a clause after a comma looks like a main one: a subject and a word that may be a verb."""
    clauses = [ADVERB.sub("", clause.strip()) for clause in sentence.split(",")[1:]]
    clauses = [clause for clause in clauses if not NO_CLAUSE.match(clause)]
    return bool(clauses and COMMA.match(sentence)) or any(MAIN_CLAUSE.match(clause) for clause in clauses)


def is_noun_phrase(count: str, follows: str, sentence: str, end: str) -> bool:
    """Tells whether a block that opens with a word of COUNTS is a fragment."""
    if follows in ("", ":", ",", ";") or PREPOSITION.fullmatch(follows) or CONJUNCTION.fullmatch(follows):
        return True
    if (FRAGMENT.fullmatch(follows) and follows.lower() != "of") or NO_PART.match(sentence):
        return True
    if opener(VERB_WANTED).match(count) and not VERB.match(sentence):
        return True
    return end in (":", ";") and bool(NO_VERB_BEFORE_COLON.match(sentence))


def fragment_opener(text: str) -> str | None:
    """Returns the opener that makes a fragment of the block `text`, or None if the block opens with a sentence."""
    plain = QUOTED.sub("X", ABBREVIATION.sub(r"\1", text)).strip()
    stop = END.search(plain)
    sentence, end = (plain[: stop.start()], stop[0]) if stop else (plain, "")
    sentence = " ".join(sentence.split())
    if end == "?":
        return None
    if found := FRAGMENT.match(sentence):
        return found[0]
    if found := CONJUNCTION.match(sentence):
        return None if has_main_clause(sentence) or EARLY_SUBJECT.match(sentence) else found[0]
    if found := PREPOSITION.match(sentence):
        verbs = (AT_LEAST, EARLY_VERB, EARLY_SUBJECT)
        return None if has_main_clause(sentence) or any(verb.match(sentence) for verb in verbs) else found[0]
    if (found := COUNT.match(sentence + end)) and is_noun_phrase(found[1], found[2], sentence, end):
        return found[1]
    return None


@dataclass(frozen=True)
class Block:
    """A comment, a docstring or a paragraph: its first line, and its text without the comment's marks."""

    line: int
    text: str
    is_trailing: bool = False


# Instructions to tools are no prose.
DIRECTIVE = re.compile(
    r"!|NOLINT|clang-format (?:on|off)|noqa\b|type: ignore|pragma\b|mypy:|ruff:|pyright:|shellcheck "
)


def joined(comments: Iterable[tuple[int, int, bool, str]]) -> Iterator[Block]:
    """Joins the comments of consecutive lines, given as (line, column, follows code, text), to blocks.

    A comment below a trailing one continues it if both start at the same column.
    """
    first, last, at, trails = 0, 0, 0, False
    texts: list[str] = []
    for line, column, follows_code, text in comments:
        if DIRECTIVE.match(text):
            continue
        if texts and line == last + 1 and not follows_code and (not trails or column == at):
            texts.append(text)
        else:
            if texts:
                yield Block(first, "\n".join(texts), trails)
            first, at, trails, texts = line, column, follows_code, [text]
        last = line + text.count("\n")
    if texts:
        yield Block(first, "\n".join(texts), trails)


def cpp_comments(text: str) -> Iterator[tuple[int, int, bool, str]]:
    for match in QUOTED_OR_COMMENT.finditer(text):
        if match[0].startswith(("//", "/*")):
            before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            plain = re.sub(r"^[ \t]*(?:/{2,}|/\*+|\*(?!/))[!<]?|\*/$", "", match[0], flags=re.MULTILINE)
            yield line_of(text, match.start()), len(before), bool(before.strip()), plain.strip(" ")


FILE_NAME = re.compile(r"^\"[\w./-]+\.(?:h|cpp|cuh|py|json|svg|csv)\"$")
HASH_COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*"|'[^'\n]*'|\\.|\$\{[^}\n]*\}|\$\#)|(?<![^\s;])(\#[^\n]*)""")


def hash_comments(text: str) -> Iterator[tuple[int, int, bool, str]]:
    """Finds the comments of shell, CMake, Make and TOML."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in HASH_COMMENT.finditer(line):
            if match[2]:
                yield number, match.start(), bool(line[: match.start()].strip()), match[2].lstrip("#").strip()
                break


@lru_cache(maxsize=2)
def tokens_of(text: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def python_comments(text: str) -> Iterator[tuple[int, int, bool, str]]:
    for token in tokens_of(text):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            yield line, column, bool(token.line[:column].strip()), token.string.lstrip("#").strip()


def docstrings(text: str) -> Iterator[Block]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield Block(node.body[0].lineno, docstring)


def literals(path: str, text: str) -> Iterator[Block]:
    """Finds the string literals of C++ and Python, except the names of files."""
    found: list[tuple[int, str]] = []
    if path.endswith(CPP_SUFFIXES):
        matches = [match for match in QUOTED_OR_COMMENT.finditer(text) if not match[0].startswith(("//", "/*"))]
        found = [(line_of(text, match.start()), match[0]) for match in matches]
    elif path.endswith(PYTHON_SUFFIXES):
        kinds = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None))
        found = [(token.start[0], token.string) for token in tokens_of(text) if token.type in kinds]
    for line, literal in found:
        if not FILE_NAME.search(literal):
            yield Block(line, literal)


CODE_IN_LINE = re.compile(r"(?<!`)`[^`\n]+`(?!`)|\]\([^)\s]+\)")
FENCE = re.compile(r"^[ \t]*(```+|~~~+).*?(?:^[ \t]*\1|\Z)", re.MULTILINE | re.DOTALL)
PARAGRAPH = re.compile(r"(?:^[ \t]*\S[^\n]*(?:\n|\Z))+", re.MULTILINE)
# Headings, tables, list items, quotations, images and HTML are no paragraphs.
NO_PARAGRAPH = re.compile(r"[ \t]*(?:[|#>+*<!$-]|\d+\.|```|~~~|\[\S+\]:)")


def paragraphs(text: str) -> Iterator[Block]:
    """Finds the paragraphs of Markdown outside its fences."""
    for match in PARAGRAPH.finditer(FENCE.sub(blank, text)):
        if not NO_PARAGRAPH.match(match[0]):
            yield Block(line_of(text, match.start()), match[0])


@dataclass(frozen=True)
class Source:
    """A file: its path from the root, its text, and its comments and docstrings."""

    path: str
    text: str
    blocks: tuple[Block, ...]

    @property
    def folder(self) -> str:
        return self.path.split("/")[0] if "/" in self.path and not self.path.startswith(".") else "root"

    @property
    def openers(self) -> list[Block]:
        return [block for block in self.blocks if not block.is_trailing]


def blocks_of(path: str, text: str) -> Iterator[Block]:
    if path.endswith(CPP_SUFFIXES):
        found = [*joined(cpp_comments(text))]
    elif path.endswith(PYTHON_SUFFIXES):
        found = [*joined(python_comments(text)), *docstrings(text)]
    elif path.endswith(".md"):
        found = [*paragraphs(text)]
    else:
        found = [*joined(hash_comments(text))]
    yield from (block for block in found if re.search(r"[A-Za-z]{2}", block.text))


NAME = re.compile(r"[A-Za-z_]\w*")
# In prose a word is a name if it has an underscore or a capital inside, or is called.
NAME_IN_PROSE = re.compile(r"(?<!\w)(?:[A-Za-z]*_\w+|[a-z]\w*[A-Z]\w*|[A-Z]+[a-z]\w*[A-Z]\w*|[a-z]\w*(?=\(\)))")


def names_of(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Finds the names of the code, outside comments and literals; a called one has () after it."""
    if path.endswith(PYTHON_SUFFIXES):
        before = None
        for token in tokens_of(text):
            if before:
                yield before.start[0], before.string + ("()" if token.string == "(" else "")
            before = token if token.type == tokenize.NAME else None
    elif not path.endswith(".md"):
        code = QUOTED_OR_COMMENT.sub(blank, text) if path.endswith(CPP_SUFFIXES) else text
        for number, line in enumerate(code.splitlines(), 1):
            for match in NAME.finditer(line):
                yield number, match[0] + ("()" if line[match.end() : match.end() + 1] == "(" else "")


@cache
def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def words_pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)".replace(" ", r"\s+"), re.IGNORECASE)


CONTEXT = 80  # characters before and after a hit that are searched for a match of `allowed`


def hits(pattern: re.Pattern[str], text: str, allowed: re.Pattern[str] | None) -> Iterator[re.Match[str]]:
    """Finds the matches of `pattern` that are outside all matches of `allowed`."""
    for match in pattern.finditer(text):
        begin, end = max(match.start() - CONTEXT, 0), match.end() + CONTEXT
        spans = (found.span() for found in allowed.finditer(text, begin, end)) if allowed else ()
        if not any(first <= match.start() and match.end() <= last for first, last in spans):
            yield match


WORD_ROWS = [(row, words_pattern(row.word)) for row in GLOSSARY if row.word]
NAME_ROWS = [(row, re.compile(row.name)) for row in GLOSSARY if row.name]
ALLOWED = {row: re.compile(row.allowed.replace(" ", r"\s+"), re.IGNORECASE) for row in GLOSSARY if row.allowed}
# One search with these rejects most texts and names.
ANY_WORD = words_pattern("|".join(row.word for row, _ in WORD_ROWS))
ANY_NAME = re.compile("|".join(row.name for row, _ in NAME_ROWS))


@cache
def rows_against(name: str) -> tuple[Forbidden, ...]:
    """Returns the rows that forbid the name in some path."""
    plain = snake_case(name)
    if not ANY_NAME.search(plain):
        return ()
    return tuple(row for row, pattern in NAME_ROWS if any(hits(pattern, plain, ALLOWED.get(row))))


def check_names(path: str, names: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for line, name in () if path.startswith(RECORDS) else names:
        for row in rows_against(name):
            if re.match(row.paths, path):
                yield line, f'"{name}" (say: {row.say})'
                break


def names_in_prose(block: Block) -> Iterator[tuple[int, str]]:
    for match in NAME_IN_PROSE.finditer(block.text):
        call = "()" if block.text.startswith("(", match.end()) else ""
        yield block.line + block.text.count("\n", 0, match.start()), match[0] + call


def check_words(path: str, block: Block) -> Iterator[tuple[int, str]]:
    if not ANY_WORD.search(block.text):
        return
    for row, pattern in WORD_ROWS:
        if re.match(row.paths, path):
            for match in hits(pattern, block.text, ALLOWED.get(row)):
                line = block.line + block.text.count("\n", 0, match.start())
                yield line, f'"{" ".join(match[0].split())}" (say: {row.say})'


def check_glossary(source: Source) -> Iterator[tuple[int, str]]:
    path, text = source.path, source.text
    if path in SPELL_OUT:
        return
    *folders, name = path.split("/")
    for line, complaint in check_names(path, [(1, part) for part in (*folders, name.split(".")[0])]):
        yield line, f"path: {complaint}"
    yield from check_names(path, names_of(path, text))
    if path.endswith(".md"):
        # Words in fences are checked, because fences have comments. Words between backquotes are code and are not.
        yield from check_names(path, names_in_prose(Block(1, text)))
        yield from check_words(path, Block(1, CODE_IN_LINE.sub(blank, text)))
    else:
        for block in (*source.blocks, *literals(path, text)):
            yield from check_names(path, names_in_prose(block))
            yield from check_words(path, block)


@dataclass(frozen=True)
class Openers:
    """The number of blocks of one or several files, and the lines and openers of their fragments."""

    blocks: int
    fragments: tuple[tuple[int, str], ...] = ()

    @property
    def share(self) -> float:
        return len(self.fragments) / self.blocks if self.blocks else 0.0

    @property
    def is_too_many(self) -> bool:
        return self.share > MAX_SHARE if self.blocks >= MANY_BLOCKS else len(self.fragments) > MAX_FEW


def openers_of(source: Source) -> Openers:
    found = [(block.line, fragment_opener(block.text)) for block in source.openers]
    if source.path.endswith(".md"):
        found = [(line, word if word and MARKDOWN_FRAGMENT.match(word) else None) for line, word in found]
    return Openers(len(found), tuple((line, word) for line, word in found if word))


def check_openers(source: Source) -> Iterator[tuple[int, str]]:
    openers = openers_of(source)
    if openers.is_too_many:
        for line, opener in openers.fragments:
            hint = ", or a comma before its main clause" if NEEDS_CLAUSE.match(opener) else ""
            yield line, f'opens with the fragment "{opener} ..." (say: a sentence, its subject first{hint})'
    for block in source.blocks:
        if block.is_trailing and (found := TRAILING_FRAGMENT.match(block.text)):
            yield block.line, f'opens with "{found[0]} ..." (say: a noun phrase that reads by itself)'


def complaints_of(source: Source) -> list[str]:
    each = sorted({*check_openers(source), *check_glossary(source)})
    return [f"{source.path}:{line}: {text}" for line, text in each]


def is_checked(path: str) -> bool:
    return (path.endswith(SUFFIXES) or path in NO_SUFFIX) and not NOT_CHECKED.fullmatch(path)


def files_of(root: Path, given: list[Path]) -> Iterator[Path]:
    """Returns the files below those `given`, or else those of the top-level folders and of the root itself."""
    folders = [*(root / folder for folder in FOLDERS), root / ".ci"]
    for path in given or [*folders, *sorted(file for file in root.iterdir() if file.is_file())]:
        if path.is_file():
            yield path
        else:
            yield from sorted(file for file in path.rglob("*") if file.is_file())


def read(root: Path, given: list[Path]) -> list[Source]:
    found = {}
    for file in files_of(root, given):
        path = file.resolve().relative_to(root).as_posix()
        if is_checked(path) and path not in found:
            text = file.read_text(encoding="utf-8")
            found[path] = Source(path, text, tuple(blocks_of(path, text)))
    return list(found.values())


def percentages(sources: Iterable[Source]) -> Openers:
    all_of = [openers_of(source) for source in sources]
    return Openers(sum(one.blocks for one in all_of), tuple(fragment for one in all_of for fragment in one.fragments))


def share_text(openers: Openers) -> str:
    return f"{len(openers.fragments)} of {openers.blocks} blocks open with a fragment ({openers.share:.1%})"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="tree to check")
    parser.add_argument(
        "--list", type=Path, nargs="+", default=[], metavar="FILE", help="check only these files and folders"
    )
    parser.add_argument("--stats", action="store_true", help="print the numbers of each file, without complaints")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    given = [path if path.is_absolute() else root / path for path in options.list]
    if missing := [path for path in given if not path.exists()]:
        parser.error(f"{missing[0]} does not exist")
    sources = read(root, given)
    if not sources:
        parser.error(f"nothing to check in {root}")
    complaints = {source.path: complaints_of(source) for source in sources}
    for source in sources:
        if options.stats:
            print(f"{source.path}: {share_text(openers_of(source))}, {len(complaints[source.path])} complaints")
        else:
            print("\n".join(complaints[source.path]), end="\n" if complaints[source.path] else "", file=sys.stderr)
    for folder in dict.fromkeys(source.folder for source in sources):
        of_folder = [source for source in sources if source.folder == folder]
        number = sum(len(complaints[source.path]) for source in of_folder)
        print(f"prose: {folder}: {len(of_folder)} files, {share_text(percentages(of_folder))}, {number} complaints")
    number = sum(map(len, complaints.values()))
    print(f"prose: {len(sources)} files, {share_text(percentages(sources))}, {number or 'no'} complaints")
    return 1 if number and not options.stats else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
