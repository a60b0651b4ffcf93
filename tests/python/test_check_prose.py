"""tools/check_prose.py complains about fragments and old words of the glossary, and about nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import check_prose

ROOT = Path(__file__).parents[2]

SENTENCES = [
    "The store logs an entry that the driver rejects.",
    "Returns the pages of the document.",
    "Where the driver rejects an entry, the store logs it.",
    "Where there is no task, the last is loaded once more.",
    "In decode, a CTA reads the keys of one KV head.",
    "In each round every candidate is run once, in another order each time.",
    "On a GPU the kernels are compiled for it; without one an emulator runs the same source.",
    "For an arch that is named, the same source is compiled on every machine.",
    "For some parameters such as `q` we need the stride.",
    "For details, see the design.",
    "With keys of zeros, attention is the mean of the values.",
    "Without a GPU, run `make test`.",
    "To rebuild the wheel, run `make wheel`.",
    "After the wait, the consumer reads the stage.",
    "As the table is small, each lane searches all of it.",
    "If the cache is absent, compile.",
    "If the item is gone, also remove its key.",
    "While it lives, launches are counted.",
    "Because the stage is free, the producer need not wait.",
    "At least 16 rows are copied.",
    "At most one warp has the lock.",
    "In-place copies are refused.",
    "Two-phase commits are not needed.",
    "What is a page?",
    "Which lanes hold the row?",
    "All threads of the CTA have arrived.",
    "All wait for the stream.",
    "All of the products have been waited for.",
    "Both wait for the stream.",
    "Each warp has 16 rows.",
    "Each of these warps reads one head.",
    "Every query sees every key.",
    "One warp copies the rows.",
    "Only a lock that no process holds may go.",
    "None of it is read.",
    "Some tests look at it as another user.",
    "Also checks the strides.",
    "But the driver refuses that.",
    "Nothing is thrown.",
    "Parts of the source are left out.",
    "Foreign pools are refused.",
    "A slot, e.g. the first, is free.",
    "append: stores new keys and values in their pages.",
]

FRAGMENTS = [
    ("Of a thread.", "Of"),
    ("of a thread.", "of"),
    ("What rotates the queries.", "What"),
    ("Who asks is told.", "Who"),
    ("Whose pages are free.", "Whose"),
    ("Those of a CTA.", "Those"),
    ("That of the present document.", "That"),
    ("That is loaded before.", "That"),
    ("Which keys a query sees.", "Which"),
    ("Whether the step is captured.", "Whether"),
    ("How many rows there are.", "How"),
    ("Why it is there.", "Why"),
    ("Behind the last block.", "Behind"),
    ("Beside itself without what is lazy.", "Beside"),
    ("Else the table has to say it.", "Else"),
    ("And on no other.", "And"),
    ("Or lazyrope::compile().", "Or"),
    ("But for the last.", "But for"),
    ("In place of the driver.", "In place of"),
    ("The same of values.", "The same of"),
    ("So that the tests find nothing.", "So that"),
    ("Not inlined: it would cost registers.", "Not"),
    ("As PyTorch names them.", "As"),
    ("As wait(), for the consumer.", "As"),
    ("As it is loaded, likewise what follows: it waits for the load.", "As"),
    ("As many as there are columns.", "As many"),
    ("Where one appended token goes.", "Where"),
    ("Where a block is, of which there are many.", "Where"),
    ("Where the rows go, `capacity` of them.", "Where"),
    ("While the last products are made.", "While"),
    ("Until the stage is empty.", "Until"),
    ("When the hardware agrees.", "When"),
    ("By all lanes of a warp, some of which may have none.", "By"),
    ("By all threads: the parts of units.", "By"),
    ("By kernel, file, line and instruction.", "By"),
    ("With a bfloat16 pool, or with scales.", "With"),
    ("Without its pages.", "Without"),
    ("For the first tile.", "For"),
    ("For rows from `first` on, if that is before `end`.", "For"),
    ("From a page to the next of the same head.", "From"),
    ("To nearest even; saturated, which PyTorch does not do.", "To"),
    ("At once, not when garbage is collected.", "At"),
    ("In the row's order.", "In"),
    ("In which so many tiles have been wanted.", "In"),
    ("In units, each of which one warp sums at once.", "In"),
    ("On a terminal: what else is done.", "On"),
    ("Between two events that have happened.", "Between"),
    ("Before another block.", "Before"),
    ("After a block that is not the last.", "After"),
    ("Unless the extra is wanted.", "Unless"),
    ("One line: the shape.", "One"),
    ("One, or none.", "One"),
    ("One of each lane.", "One"),
    ("One that waits for no other.", "One"),
    ("Each with one token.", "Each"),
    ("Every other number of any exponent.", "Every"),
    ("Both in any case: a branch takes longer.", "Both"),
    ("Only where it is asked.", "Only"),
    ("Also what the compiler said.", "Also"),
    ("Also of magnitudes.", "Also"),
    ("All that differ in few ranges.", "All"),
    ("All of which a test tells apart.", "All"),
    ("All threads of the CTA: its tiles.", "All"),
    ("Nothing where the pool has the type.", "Nothing"),
    ("None for an absent one.", "None"),
]


@pytest.mark.parametrize("text", SENTENCES)
def test_a_sentence_is_not_a_fragment(text):
    assert check_prose.fragment_opener(text) is None


@pytest.mark.parametrize(("text", "opener"), FRAGMENTS)
def test_a_fragment_is_found_by_its_opener(text, opener):
    assert check_prose.fragment_opener(text) == opener


def test_only_the_first_sentence_counts():
    assert check_prose.fragment_opener("The rows are read. Of a head, all.") is None
    assert check_prose.fragment_opener("For the rows. Each warp has some, and reads them.") == "For"


def source(path: str, text: str) -> check_prose.Source:
    return check_prose.Source(path, text, tuple(check_prose.blocks_of(path, text)))


def complaints(path: str, text: str) -> list[str]:
    return check_prose.complaints_of(source(path, text))


# For each row of the glossary a file, a text that the row refuses, and one like it that is allowed.
EXAMPLES = [
    ("runtime/a.h", "// The kernel turned q.", "// Threads take turns; it turns a page into a row."),
    ("runtime/a.h", "TilePlan plan;", "KernelConfig config; int tile, plan;"),
    ("runtime/a.h", "AttendPlan plan;", "TileConfig attend;"),
    ("runtime/a.cpp", "auto all = candidates(spec);", "auto candidates = configs(spec);"),
    ("runtime/a.h", "int row_warps;", "int warps_m, num_warps;"),
    ("runtime/a.h", "int kKeyWarps;", "int warps_n;"),
    ("runtime/a.h", "int warp_rows_;", "int warp_m;"),
    ("runtime/a.h", "int warp_keys;", "int warp_n;"),
    ("runtime/a.h", "int step_keys;", "int mma_n; Step step; int keys;"),
    ("runtime/a.h", "int item_heads;", "int heads_per_work_tile;"),
    ("templates/a.cuh", "struct FillSide;", "struct Pipeline;"),
    ("templates/a.cuh", "side.know();", "side.wait(); // The lanes know it."),
    ("tools/a.py", "# An item of work.", "# An item of the list."),
    ("templates/a.cuh", "// The item is empty.", "// The work tile is empty."),
    ("templates/a.cuh", "int32 num_items;", "int32 num_work_tiles;"),
    ("codegen/a.cpp", "const Item item{};", "for (auto& [key, value] : config.items()) {}"),
    ("runtime/a.h", "bool is_anew; // compiled", "bool again; // compiled"),
    ("runtime/a.h", "// The page lies in the pool.", "// The page is in the pool. A client relies on it."),
    ("runtime/a.h", "// Rows are one behind the other.", "// The latency is hidden behind them; the reason behind it."),
    ("runtime/a.h", "// A key is brought.", "// A key is loaded."),
    ("templates/a.cuh", "// A warp brings keys.", "// A warp loads keys."),
    ("templates/a.cuh", "softmax.weigh(scores);", "float weight; // The weights of the model."),
    ("templates/a.cuh", "leave_rows();", "leave(); store_partial();"),
    ("runtime/a.cpp", "auto usual = plan;", "// As usual, it waits. That is unusual.\nauto as_usual = 1;"),
    ("runtime/a.h", "struct TuningContest;", "struct TuningBenchmark;"),
    ("runtime/a.h", "struct Contender;", "struct Candidate;"),
    ("tests/a.h", "struct WitnessText;", "struct ConformanceText;"),
    ("tests/a.py", "shelf = None", "fixture = 'What kind of object is a shelf?'"),
    ("python/a.py", "lazyrope.forget()", "# They forget a page.\nlazyrope.clear_cache()"),
    ("templates/a.cuh", "RowPlaces places;", "bool in_place; // It takes the place of a row."),
    ("tests/a.h", "// A place of the ring.", "// The place of the tests is here."),
    ("tools/a.py", "# A part of a tile.", "# A part of the message."),
    ("tests/a.h", "int num_parts;", "int parts_of_speech;"),
    ("tools/bench/limits.py", "kept = True", "is_met = True"),
    ("templates/a.cuh", "// It waits for those who read.", "// It waits for the threads that read."),
    ("tools/a.py", "# The figures are in NOTES.md.", "# The figures are in design.md."),
]  # fmt: skip


def test_every_row_has_an_example():
    assert len(EXAMPLES) == len(check_prose.GLOSSARY)


@pytest.mark.parametrize(("row", "example"), [*zip(check_prose.GLOSSARY, EXAMPLES, strict=False)])
def test_the_glossary_refuses_a_word_and_allows_similar_text(row, example):
    path, bad, good = example
    assert any(f"(say: {row.say})" in complaint for complaint in complaints(path, bad))
    assert complaints(path, good) == []


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("runtime/a.h", '// One\n// sees\n// "anew".', 'runtime/a.h:3: "anew" (say: again)'),
        (
            "runtime/a.h",
            "// Rows one\n//   behind the\n//   other.",
            'runtime/a.h:1: "one behind the other" (say: after)',
        ),
        ("tools/a.py", '"""Reads.\n\nIt reads anew."""', 'tools/a.py:3: "anew" (say: again)'),
        ("tools/a.py", 'message = "read anew"', 'tools/a.py:1: "anew" (say: again)'),
        ("runtime/a.cpp", 'throw Error("read anew");', 'runtime/a.cpp:1: "anew" (say: again)'),
        ("tools/a.sh", "run # and anew", 'tools/a.sh:1: "anew" (say: again)'),
        ("a.md", "| a | anew |", 'a.md:1: "anew" (say: again)'),
        ("a.md", "```python\nf()  # anew\n```", 'a.md:2: "anew" (say: again)'),
        ("a.md", "The field `row_warps`.", 'a.md:1: "row_warps" (say: warps_m)'),
        ("templates/kernel/a.cu.in", "int x = ${reads_anew};", 'templates/kernel/a.cu.in:1: "reads_anew" (say: again)'),
        ("tools/leave_rows.py", "", 'tools/leave_rows.py:1: path: "leave_rows" (say: store_partial)'),
    ],
)
def test_a_word_is_found_in_its_line(path, text, complaint):
    assert complaint in complaints(path, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("runtime/a.cpp", '#include "tests/isa/witness/params.h"'),
        ("a.md", "See [the file](tests/anew)."),
        ("runtime/a.cpp", "// NOLINT(of-what)"),
    ],
)
def test_file_names_and_directives_are_not_prose(path, text):
    assert complaints(path, text) == []


@pytest.mark.parametrize(
    ("blocks", "fragments", "fails"),
    [
        (1, 1, False),
        (2, 2, True),
        (49, 1, False),
        (49, 2, True),
        (50, 1, False),
        (50, 2, True),
        (100, 2, False),
        (100, 3, True),
    ],
)
def test_a_file_may_have_few_fragments(blocks, fragments, fails):
    text = "// Of a lane.\n\n" * fragments + "// The lane waits.\n\n" * (blocks - fragments)
    found = complaints("runtime/a.h", text)
    assert len(found) == (fragments if fails else 0)
    if fails:
        assert found[0] == 'runtime/a.h:1: opens with the fragment "Of ..." (say: a sentence, its subject first)'


def test_markdown_paragraphs_are_refused_only_for_the_worst_openers():
    assert complaints("a.md", "In 2026 it began: slowly.\n\nBeside it.\n") == []
    assert len(complaints("a.md", "What rotates.\n\nThose of a CTA.\n")) == 2


def test_records_of_experiments_may_use_old_names():
    assert complaints("tests/gpu/experiments/a.md", "The test `turn_back` of leave_rows.\n") == []
    assert len(complaints("tests/gpu/experiments/a.md", "The queries turn.\n")) == 1


def test_the_changelog_spells_out_old_names():
    assert complaints("python/docs/changelog.md", "| TilePlan | anew |\n") == []


def test_a_preposition_may_get_a_comma():
    found = complaints("runtime/a.h", "// For a row.\n\n// For a lane.\n")
    assert found[0].endswith("(say: a sentence, its subject first, or a comma before its main clause)")


@pytest.mark.parametrize("opener", ["of", "what", "who", "whose"])
def test_a_trailing_comment_may_be_a_noun_phrase_but_not_begin_with(opener):
    assert complaints("runtime/a.h", "int rows;  // rows of a head") == []
    assert complaints("runtime/a.h", "int rows;  // for a head") == []
    assert complaints("runtime/a.h", f"int rows;  // {opener} a head") == [
        f'runtime/a.h:1: opens with "{opener} ..." (say: a noun phrase that reads by itself)'
    ]


def blocks(path: str, text: str) -> list[tuple[int, str, bool]]:
    return [(block.line, block.text.strip(), block.is_trailing) for block in check_prose.blocks_of(path, text)]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.h", "// one\n// two\n\n// three\n", [(1, "one\ntwo", False), (4, "three", False)]),
        ("a.h", "int a;  // one\n        // two\n// three\n", [(1, "one\ntwo", True), (3, "three", False)]),
        ("a.h", "int a;  // one\n// two\n", [(1, "one", True), (2, "two", False)]),
        ("a.h", "/* one\n * two\n */\nint a;", [(1, "one\n two", False)]),
        ("a.h", "/// one\n//! two\n", [(1, "one\ntwo", False)]),
        ("a.cpp", 'f("// not");  // one', [(1, "one", True)]),
        ("a.cpp", 'f("\\"// not", \'"\', \'\\\'\');  // one', [(1, "one", True)]),
        ("a.cpp", 'f(R"(// not\n" // not)", 10\'000);  // one', [(2, "one", True)]),
        ("a.cu.in", "// one ${entry}\nint a = ${a};  // two", [(1, "one ${entry}", False), (2, "two", True)]),
        ("a.cpp", "f(/*check=*/true);  // NOLINT", [(1, "check=", True)]),
        ("a.cpp", "// clang-format off\nint a;\n// ---- \n", []),
        ("a.py", "#!python\n# one\n# two\na = '# not'  # three", [(2, "one\ntwo", False), (4, "three", True)]),
        ("a.py", 'def f():\n    """One.\n\n    Two."""\n    return """# not"""\n', [(2, "One.\n\n    Two.", False)]),
        ("a.py", "a = 1  # noqa: E501\nb = 2  # type: ignore[x]\n", []),
        ("a.sh", "# one\necho \"# not\" '# not' ${#a} a#not  # two\n", [(1, "one", False), (2, "two", True)]),
        ("Makefile", "a: b  ## one\n\techo '#'\n# two\n", [(1, "one", True), (3, "two", False)]),
        ("CMakeLists.txt", "# one\nset(A \"#\")  # two\n", [(1, "one", False), (2, "two", True)]),
        ("a.toml", "# one\na = \"#\"  # two\n", [(1, "one", False), (2, "two", True)]),
        (
            "a.md",
            "# Not\n\nOne\ntwo.\n\n- not\n\n| not |\n\n```\nnot\n\nnot\n```\n\nThree.\n",
            [(3, "One\ntwo.", False), (16, "Three.", False)],
        ),
    ],
)  # fmt: skip
def test_comments_docstrings_and_paragraphs_are_found(path, text, expected):
    assert blocks(path, text) == expected


@pytest.mark.parametrize(
    ("path", "is_checked"),
    [
        ("README.md", True),
        (".ci/run", True),
        ("Makefile", True),
        ("tests/CMakeLists.txt", True),
        ("templates/kernel/attend.cu.in", True),
        ("tests/golden/golden_test.cpp", True),
        ("tests/golden/none_sm_86.txt", False),
        ("tests/gpu/results/README.md", False),
        ("tests/isa/recordings/a.rec", False),
        ("tests/__pycache__/a.py", False),
        ("LICENSE", False),
    ],
)
def test_only_sources_and_documents_are_checked(path, is_checked):
    assert check_prose.is_checked(path) == is_checked


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "check_prose.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in {
        "README.md": "The library reads documents.\n",
        "runtime/a.h": "// The store.\nint a;  // of a row\n",
        "tools/b.py": '"""Of a tool."""\n',
        "build/c.h": "// Read anew.\n",
        "tests/gpu/results/d.md": "Read anew.\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_the_command_prints_complaints_and_the_numbers_of_each_folder(tree):
    result = run("--root", tree)
    assert result.returncode == 1
    assert result.stderr == 'runtime/a.h:2: opens with "of ..." (say: a noun phrase that reads by itself)\n'
    assert result.stdout.splitlines() == [
        "prose: runtime: 1 files, 0 of 1 blocks open with a fragment (0.0%), 1 complaints",
        "prose: tools: 1 files, 1 of 1 blocks open with a fragment (100.0%), 0 complaints",
        "prose: root: 1 files, 0 of 1 blocks open with a fragment (0.0%), 0 complaints",
        "prose: 3 files, 1 of 3 blocks open with a fragment (33.3%), 1 complaints",
    ]


def test_the_command_checks_only_the_listed_files(tree):
    result = run("--root", tree, "--list", "tools", tree / "README.md")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("prose: 2 files, ")
    assert run("--root", tree, "--list", "runtime/a.h").returncode == 1


def test_statistics_never_fail(tree):
    result = run("--root", tree, "--stats")
    assert (result.returncode, result.stderr) == (0, "")
    assert "tools/b.py: 1 of 1 blocks open with a fragment (100.0%), 0 complaints" in result.stdout


def test_the_command_refuses_absent_files_and_empty_trees(tree, tmp_path_factory):
    absent = run("--root", tree, "--list", "runtime/absent.h")
    assert absent.returncode == 2 and "absent.h does not exist" in absent.stderr
    empty = tmp_path_factory.mktemp("empty")
    nothing = run("--root", empty)
    assert nothing.returncode == 2 and f"nothing to check in {empty}" in nothing.stderr
    assert run("--help").returncode == 0
