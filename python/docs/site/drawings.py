"""The drawings of the documentation.

python python/docs/site/drawings.py    writes them to python/docs/images
"""

from __future__ import annotations

from pathlib import Path

from svg import AMBER, BLUE, GREEN, GREY, PAPER, ROSE, Drawing

IMAGES = Path(__file__).resolve().parents[1] / "images"


def document() -> Drawing:
    d = Drawing(760, 330, "A document of 40 tokens in three pages of 16 slots")
    d.text(20, 30, "*The document: 40 tokens, stored once")
    d.cells(20, 42, 17, 26, [""] * 40, [BLUE] * 40)
    d.text(20, 84, "-token 0")
    d.text(700, 84, "-token 39", anchor="end")
    d.text(20, 122, "*The page list, in the device array pages")
    d.text(348, 188, "-first_page = 4", anchor="end")
    d.arrow(354, 184, 375, 170)
    d.cells(186, 140, 42, 28, ["9", "2", "11", "7", "5", "1", "8", "3", "10"], [GREY] * 4 + [GREEN] * 3 + [GREY] * 2)
    d.text(574, 158, "-grey: other documents")
    d.text(20, 208, "*The pool: pages of 16 slots, in any order")
    for i, (page, used, first) in enumerate((("1", 16, 16), ("5", 16, 0), ("8", 8, 32))):
        x = 20 + i * 246
        d.text(x, 234, f"-page {page}")
        d.cells(x, 242, 14, 26, [""] * 16, [BLUE] * used + [PAPER] * (16 - used))
        d.text(x, 286, f"-tokens {first} to {first + used - 1}")
    d.text(20, 314, "-Slots 8 to 15 of page 8 hold nothing of this document. Kernels never use what they hold.")
    return d


def lead() -> Drawing:
    d = Drawing(760, 176, "A segment that begins inside a page has a lead")
    d.text(20, 28, "*A segment that begins inside a page: start = 21, length = 19, lead = 5")
    for i, (page, first) in enumerate((("1", 16), ("8", 32))):
        x = 60 + i * 330
        d.text(x, 56, f"-page {page}: tokens {first} to {min(first + 15, 39)}")
        fills = [BLUE if 21 <= first + s < 40 else GREY for s in range(16)]
        d.cells(x, 64, 20, 28, [str(first + s) if first + s < 40 else "" for s in range(16)], fills)
    d.span(60, 160, 112, "lead: 5 slots")
    d.arrow(60, 156, 60, 100)
    d.text(
        72,
        160,
        "-pages[first_page] is the page of the segment's first token, and lead is the slot of this token.",
    )
    return d


def segment() -> Drawing:
    d = Drawing(770, 270, "A segment puts some of a document's tokens at logical positions")
    d.text(20, 28, "*The document")
    d.cells(105, 40, 16, 26, [""] * 40, [GREY] * 10 + [BLUE] * 20 + [GREY] * 10)
    d.span(105, 265, 84, "start = 10")
    d.span(265, 585, 84, "length = 20")
    d.text(20, 146, "*Logical positions of the request")
    d.line(60, 210, 750, 210)
    for position in range(900, 941, 10):
        x = 105 + (position - 900) * 16
        d.line(x, 206, x, 214)
        d.text(x, 229, f"-{position}", anchor="middle")
    d.cells(265, 178, 16, 26, [""] * 20, [BLUE] * 20)
    d.line(105, 170, 105, 204, dashed=True)
    d.text(111, 182, "-base = 900: where")
    d.text(111, 196, "-token 0 would be")
    d.text(265, 172, "-token 10 is at 910")
    d.text(585, 172, "-token 29 is at 929", anchor="end")
    d.text(20, 256, "-Token j of the segment's document is at logical position base + j. The base may be negative.")
    return d


def two_orders() -> Drawing:
    d = Drawing(760, 304, "Two requests read the same copy of two documents in different orders")
    d.text(20, 28, "*Request 1: positions 0, 1, 2, ...")
    d.box(20, 40, 170, 34, "document A", fill=BLUE)
    d.box(190, 40, 250, 34, "document B", fill=GREEN)
    d.box(440, 40, 110, 34, "prompt", fill=GREY)
    d.text(560, 62, "-base of A = 0, of B = 40")
    d.text(20, 288, "*Request 2: positions 0, 1, 2, ...")
    d.box(20, 234, 250, 34, "document B", fill=GREEN)
    d.box(270, 234, 170, 34, "document A", fill=BLUE)
    d.box(440, 234, 110, 34, "prompt", fill=GREY)
    d.text(560, 256, "-base of B = 0, of A = 100")
    d.text(20, 118, "*The pool")
    d.box(180, 128, 150, 44, "A: 40 tokens", "-one copy", fill=BLUE)
    d.box(350, 128, 190, 44, "B: 100 tokens", "-one copy", fill=GREEN)
    d.arrow(130, 76, 230, 124)
    d.arrow(340, 76, 430, 124)
    d.arrow(160, 232, 420, 176)
    d.arrow(350, 232, 270, 176)
    return d


def forms() -> Drawing:
    d = Drawing(760, 300, "Where rotation happens in each query form")
    for i, (title, given, angle, note) in enumerate(
        (
            ('*query_form = "raw" (the default)', "q", "by p - base", "appended k arrives as projected"),
            ('*query_form = "rotated"', "R(p) q", "by -base", "appended k arrives as R(j) k"),
        )
    ):
        x = 20 + i * 372
        d.text(x, 30, title)
        d.box(x, 48, 150, 44, "query", f"`{given}", fill=AMBER)
        d.box(x + 196, 48, 150, 44, "kernel rotates", angle, fill=BLUE)
        d.arrow(x + 152, 70, x + 192, 70)
        d.box(x + 196, 130, 150, 44, "score", "`<R(p - base) q, R(j) k>", fill=GREEN, size=12)
        d.arrow(x + 271, 94, x + 271, 126)
        d.box(x, 130, 150, 44, "page holds", "`R(j) k", fill=GREY)
        d.arrow(x + 152, 152, x + 192, 152)
        d.box(x, 214, 150, 44, "append", "`rotates by j" if i == 0 else "`copies", fill=BLUE)
        d.arrow(x + 75, 212, x + 75, 178)
        d.text(x + 166, 240, "-" + note)
    d.text(
        20, 286, "-p: logical position of the query.  j: index of the key in its own document.  base: of the segment."
    )
    return d


def layers() -> Drawing:
    d = Drawing(760, 330, "The layers of the library and what each may use")
    d.box(40, 20, 320, 46, "*python/", "-package, bindings, type stubs", fill=AMBER)
    d.box(400, 20, 320, 46, "*tools/", "-the lazyrope command, benchmarks", fill=AMBER)
    d.box(40, 110, 680, 60, "*runtime/", "-base, driver, emulator, spec, engine, step, attention, tuning", fill=BLUE)
    d.box(40, 214, 320, 46, "*codegen/", "-spec + config + arch -> source", fill=GREEN)
    d.box(400, 214, 320, 46, "*cache/", "-bytes under a key, on disk", fill=GREEN)
    d.box(40, 290, 320, 30, "templates/: device text", fill=GREY)
    d.arrow(200, 68, 200, 106)
    d.arrow(560, 68, 560, 106)
    d.arrow(200, 172, 200, 210)
    d.arrow(560, 172, 560, 210)
    d.arrow(200, 262, 200, 286)
    d.text(400, 300, "-codegen reads the text. Host code includes")
    d.text(400, 316, "-templates/abi/, the structs that both sides share.")
    return d


def one_call() -> Drawing:
    d = Drawing(760, 470, "From compile to attend")
    d.text(20, 28, "*Once a model")
    d.box(20, 40, 110, 44, "spec", fill=AMBER)
    d.box(170, 40, 130, 44, "configs", "-default first", fill=GREEN)
    d.box(340, 40, 120, 44, "render", "-source text", fill=GREEN)
    d.box(500, 40, 110, 44, "cache key", fill=GREEN)
    d.box(640, 28, 100, 30, "in memory", fill=GREY)
    d.box(640, 62, 100, 30, "on disk", fill=GREY)
    d.box(640, 96, 100, 30, "NVRTC", fill=GREY)
    for x in (132, 302, 462):
        d.arrow(x, 62, x + 34, 62)
    for y in (43, 77, 111):
        d.arrow(612, 62, 636, y)
    d.text(20, 160, "*Once a pass of the model")
    d.box(20, 172, 170, 60, "requests, segments,", "positions", "-int32 on the device", fill=AMBER, size=13)
    d.box(240, 172, 150, 60, "planner kernel", "`plan() / update()", fill=BLUE)
    d.box(
        440,
        172,
        300,
        60,
        "step",
        "-work tiles of each attend kernel, segments,",
        "-partial results, counters",
        fill=GREY,
    )
    d.arrow(192, 202, 236, 202)
    d.arrow(392, 202, 436, 202)
    d.text(20, 278, "*Once a layer")
    d.box(20, 290, 170, 40, "k, v of new tokens", fill=AMBER)
    d.box(240, 290, 150, 40, "append kernel", fill=BLUE)
    d.box(440, 290, 120, 90, "KV pool", fill=GREY)
    d.box(20, 340, 170, 40, "q, step", fill=AMBER)
    d.box(240, 340, 150, 40, "attend kernels", "-decode, prefill", fill=BLUE)
    d.box(240, 416, 150, 40, "out, lse", fill=GREEN)
    d.arrow(192, 310, 236, 310)
    d.arrow(392, 310, 436, 310)
    d.arrow(192, 360, 236, 360)
    d.arrow(436, 360, 394, 360)
    d.arrow(315, 382, 315, 412)
    return d


def codegen() -> Drawing:
    d = Drawing(760, 300, "From a spec to source text")
    d.box(20, 30, 170, 50, "KernelSpec", "-head_dim, group, RoPE, ...", fill=AMBER)
    d.box(20, 110, 170, 50, "Arch", "-limits, family, isa", fill=AMBER)
    d.box(260, 70, 160, 50, "configs(spec, arch)", "-legal ones, default first", fill=GREEN)
    d.arrow(192, 55, 256, 85)
    d.arrow(192, 135, 256, 105)
    d.box(500, 70, 240, 50, "KernelConfig", "-decode and prefill TileConfig", fill=BLUE)
    d.arrow(422, 95, 496, 95)
    d.box(20, 200, 170, 74, "registries", "-rope: frequencies, file", "-mask: parameters, file", fill=GREY)
    d.box(
        260,
        200,
        160,
        74,
        "render(kind, ...)",
        "-fills ${names} of kernel/*,",
        "-flattens includes",
        fill=GREEN,
        size=13,
    )
    d.arrow(192, 237, 256, 237)
    d.arrow(560, 122, 400, 196)
    d.arrow(105, 162, 280, 196)
    d.box(500, 200, 240, 74, "RenderedKernel", "-source, entry, threads,", "-shared bytes", fill=BLUE)
    d.arrow(422, 237, 496, 237)
    return d


def work_tile() -> Drawing:
    d = Drawing(840, 416, "Data flow of one work tile, family sm90a, many rows")
    d.text(20, 28, "*Producer warps")
    d.text(330, 28, "*Shared memory: each stage has a full and an empty barrier")
    d.box(20, 44, 230, 46, "warp 0: scheduler", "-work tiles, pages of blocks", fill=AMBER)
    d.box(330, 44, 290, 46, "work tiles; block table", "-a window of blocks at a time", fill=GREY)
    d.box(20, 116, 230, 46, "one or two KV copier warps", "-TMA from pages of any size", fill=AMBER)
    d.box(330, 110, 290, 30, "keys: a ring of blocks", fill=BLUE)
    d.box(330, 148, 290, 30, "values: a ring of blocks", fill=BLUE)
    d.box(20, 212, 230, 58, "query rotator warps", "-the tile's queries,", "-for the next segment", fill=AMBER)
    d.box(330, 198, 290, 30, "original queries", fill=GREY)
    d.box(330, 248, 290, 30, "rotated queries", fill=GREEN)
    d.box(690, 170, 130, 100, "consumers:", "2 warpgroups,", "-64 rows each:", "-QK, softmax, PV", fill=ROSE)
    d.arrow(252, 67, 326, 67)
    d.arrow(252, 130, 326, 125)
    d.arrow(252, 146, 326, 163)
    d.arrow(252, 232, 326, 216, both=True)
    d.arrow(252, 256, 326, 263)
    d.arrow(622, 67, 740, 166)
    d.arrow(622, 125, 710, 166)
    d.arrow(622, 163, 686, 190)
    d.arrow(622, 263, 686, 244)
    d.arrow(755, 272, 755, 312)
    d.box(330, 316, 490, 30, "out and lse, or the partial result of a KV split", fill=GREEN)
    d.text(
        20,
        378,
        "-A producer waits until a stage is empty (acquire) and says when it is full (commit). A consumer waits",
    )
    d.text(
        20,
        395,
        "-until it is full (wait) and says when it has read it (release). There is no CTA-wide barrier between tiles.",
    )
    return d


def planner() -> Drawing:
    d = Drawing(760, 350, "Stream-K: units on a line, cut into equal shares")
    d.text(20, 28, "*Units: one query tile x one head group; the width is its cost")
    widths = [150, 90, 90, 200, 60, 130]
    x = 20
    for i, w in enumerate(widths):
        d.box(x, 40, w, 36, f"unit {i}", fill=(BLUE, GREEN)[i % 2], size=13)
        x += w
    d.text(20, 112, "*Shares: one for each CTA of the attend kernel, of equal cost")
    for i in range(4):
        d.box(20 + i * 180, 124, 180, 36, f"CTA {i}", fill=AMBER, size=13)
        if i:
            d.line(20 + i * 180, 34, 20 + i * 180, 84, dashed=True)
            d.line(20 + i * 180, 118, 20 + i * 180, 166, dashed=True)
    d.text(20, 204, "*Work tiles: what a CTA computes one after the other")
    pieces = [
        (20, 150, "0", ""),
        (170, 30, "1", "a"),
        (200, 60, "1", "b"),
        (260, 90, "2", ""),
        (350, 30, "3", "a"),
        (380, 170, "3", "b"),
        (550, 60, "4", ""),
        (610, 130, "5", ""),
    ]
    for left, w, unit, half in pieces:
        d.box(left, 216, w, 36, f"{unit}{half}", fill=ROSE if half else GREY, size=12)
    d.text(
        20,
        286,
        "-Units 1 and 3 are cut. Each half is a KV split: a work tile that sees some of the unit's KV blocks and",
    )
    d.text(
        20,
        302,
        "-writes a partial result. The CTAs that compute a unit's splits combine them in the same launch.",
    )
    d.text(
        20,
        332,
        "-A cut near an end of a unit is moved there, as at unit 4: splits have at least min_split_blocks blocks.",
    )
    return d


def cache() -> Drawing:
    d = Drawing(760, 270, "Looking up a kernel")
    d.box(20, 40, 140, 60, "source, options,", "arch, compiler", "-named fields", fill=AMBER, size=13)
    d.box(200, 48, 110, 44, "SHA-256", "-the key", fill=GREEN)
    d.box(350, 48, 110, 44, "memory", fill=BLUE)
    d.box(500, 48, 110, 44, "disk", "-layers first", fill=BLUE)
    d.box(650, 48, 90, 44, "compile", fill=ROSE)
    d.arrow(162, 70, 196, 70)
    d.arrow(312, 70, 346, 70)
    d.arrow(462, 70, 496, 70, "miss")
    d.arrow(612, 70, 646, 70, "miss")
    d.box(
        500,
        150,
        240,
        60,
        "a lock file of the key",
        "-one process compiles, the others",
        "-wait and look again",
        fill=GREY,
        size=13,
    )
    d.arrow(695, 94, 695, 146)
    d.box(
        200, 150, 260, 60, "temporary file, then rename", "-an entry is there whole, or not at all", fill=GREY, size=13
    )
    d.arrow(496, 180, 464, 180)
    d.text(
        20,
        248,
        "-A damaged entry, or one that another user may write, is a logged miss: the kernel is compiled again.",
    )
    return d


def runtime() -> Drawing:
    d = Drawing(760, 300, "The folders of runtime and what they use")
    d.box(40, 20, 200, 44, "*tuning/", "-measures configs", fill=BLUE)
    d.box(280, 20, 200, 44, "*attention/", "-checks, launches", fill=BLUE)
    d.box(520, 20, 200, 44, "*step/", "-capacity, planner launch", fill=BLUE)
    d.box(40, 110, 440, 44, "*engine/", "-kernels from memory, disk or a compiler; devices", fill=GREEN)
    d.box(520, 110, 200, 44, "*spec/", "-AttentionSpec, config.json", fill=GREEN)
    d.box(40, 200, 200, 44, "*driver/", "-libcuda, NVRTC, GPU", fill=AMBER)
    d.box(280, 200, 200, 44, "*emulator/", "-a GPU's rules on a CPU", fill=AMBER)
    d.box(520, 200, 200, 44, "*base/", "-errors, config, log, tensors", fill=GREY)
    d.arrow(140, 66, 140, 106)
    d.arrow(380, 66, 380, 106)
    d.arrow(242, 42, 276, 42)
    d.arrow(482, 42, 516, 42)
    d.arrow(600, 66, 480, 108)
    d.arrow(640, 66, 640, 106)
    d.arrow(140, 156, 140, 196)
    d.arrow(380, 156, 380, 196)
    d.text(
        40, 280, "-driver/ and emulator/ implement the same two interfaces, Device and Compiler. All folders use base/."
    )
    return d


def emulator() -> Drawing:
    d = Drawing(760, 300, "The same source, two instruction sets")
    d.box(20, 30, 190, 60, "templates", "-kernel, family, planner,", "-pipeline, ops, tile", fill=BLUE, size=13)
    d.box(290, 20, 150, 40, "isa/ptx", "-asm statements", fill=GREEN)
    d.box(290, 80, 150, 40, "isa/emu", "-host C++", fill=AMBER)
    d.arrow(212, 55, 286, 40)
    d.arrow(212, 65, 286, 100)
    d.box(520, 20, 100, 40, "NVRTC", fill=GREY)
    d.box(520, 80, 100, 40, "c++", fill=GREY)
    d.box(650, 20, 90, 40, "cubin", fill=GREEN)
    d.box(650, 80, 90, 40, ".so", fill=AMBER)
    for y in (40, 100):
        d.arrow(442, y, 516, y)
        d.arrow(622, y, 646, y)
    d.box(
        290,
        170,
        450,
        96,
        "machine",
        "-one fiber per thread; the next to run is drawn at random",
        "-shared memory: state, writer and fences of each word",
        "-copies and products in flight; mbarriers; race detector",
        fill=ROSE,
    )
    d.arrow(695, 122, 695, 166)
    d.text(20, 200, "-Every instruction is a call")
    d.text(20, 216, "-of the machine, which checks")
    d.text(20, 232, "-the rules of the PTX manual")
    d.text(20, 248, "-and raises KernelFault.")
    return d


def python() -> Drawing:
    d = Drawing(760, 330, "The Python package")
    d.box(20, 20, 220, 44, "*lazyrope.transformers", "-engine of a model", fill=AMBER)
    d.box(270, 20, 220, 44, "*lazyrope.documents", "-store of pages", fill=AMBER)
    d.box(520, 20, 220, 44, "*lazyrope.torch", "-operators for torch.compile", fill=AMBER)
    d.box(
        20,
        110,
        720,
        60,
        "*lazyrope",
        "-AttentionSpec, compile, Attention, Step, Segments, batch; emulator, rope, errors, eager",
        fill=BLUE,
    )
    d.box(
        20,
        216,
        720,
        44,
        "*lazyrope._core",
        "-pybind11: DLPack tensors in, the framework's current stream, errors as Python exceptions",
        fill=GREEN,
    )
    d.box(20, 286, 720, 30, "runtime/ (C++)", fill=GREY)
    d.arrow(242, 42, 266, 42)
    for x in (130, 380, 630):
        d.arrow(x, 66, x, 106)
    d.arrow(380, 172, 380, 212)
    d.arrow(380, 262, 380, 282)
    return d


def drawings() -> dict[str, str]:
    """The text of each file."""
    made = (
        document,
        lead,
        segment,
        two_orders,
        forms,
        layers,
        one_call,
        codegen,
        work_tile,
        planner,
        cache,
        runtime,
        emulator,
        python,
    )
    return {f"{draw.__name__.replace('_', '-')}.svg": str(draw()) for draw in made}


if __name__ == "__main__":
    for name, text in drawings().items():
        (IMAGES / name).write_text(text)
