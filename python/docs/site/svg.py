"""Boxes, arrows and text as an SVG file. Every drawing has a light background of its own, so that it reads alike on
light and dark pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

INK, LINE, PAPER = "#1f2933", "#52606d", "#fbfbf9"
BLUE, GREEN, AMBER, GREY, ROSE = "#dbe7f5", "#dcefdf", "#f9eccb", "#e8eaed", "#f6dedd"
FONT = "font-family='system-ui, -apple-system, Segoe UI, Roboto, sans-serif'"
MONO = "font-family='ui-monospace, SFMono-Regular, Menlo, Consolas, monospace'"


@dataclass
class Drawing:
    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, w: float, h: float, *lines: str, fill: str = BLUE, size: int = 14) -> None:
        """A box with centred lines. A line that begins with "`" is set as code, one with "-" small."""
        self.parts.append(
            f"<rect x='{x}' y='{y}' width='{w}' height='{h}' rx='5' fill='{fill}' stroke='{LINE}' stroke-width='1.2'/>"
        )
        step = size + 4
        top = y + h / 2 - step * (len(lines) - 1) / 2 + size * 0.35
        for i, line in enumerate(lines):
            self.text(x + w / 2, top + i * step, line, size=size, anchor="middle")

    def text(self, x: float, y: float, line: str, *, size: int = 14, anchor: str = "start", colour: str = INK) -> None:
        font, weight = FONT, "normal"
        if line.startswith("`"):
            line, font, size = line[1:], MONO, size - 1
        elif line.startswith("-"):
            line, size = line[1:], size - 2
        elif line.startswith("*"):
            line, weight = line[1:], "600"
        self.parts.append(
            f"<text x='{x:g}' y='{y:g}' font-size='{size}' {font} font-weight='{weight}' text-anchor='{anchor}' "
            f"fill='{colour}'>{escape(line, quote=False)}</text>"
        )

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, label: str = "", *, dashed: bool = False, both: bool = False
    ) -> None:
        dash = " stroke-dasharray='5 4'" if dashed else ""
        start = " marker-start='url(#back)'" if both else ""
        self.parts.append(
            f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{LINE}' stroke-width='1.5'{dash}{start} "
            "marker-end='url(#tip)'/>"
        )
        if label:
            is_flat = y1 == y2
            x, y = ((x1 + x2) / 2, y1 - 6) if is_flat else (max(x1, x2) + 6, (y1 + y2) / 2 + 4)
            self.text(x, y, "-" + label, anchor="middle" if is_flat else "start")

    def line(self, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> None:
        dash = " stroke-dasharray='4 4'" if dashed else ""
        self.parts.append(f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{LINE}' stroke-width='1.2'{dash}/>")

    def span(self, x1: float, x2: float, y: float, label: str) -> None:
        """A dimension line with its label below."""
        self.line(x1, y - 5, x1, y + 5)
        self.line(x2, y - 5, x2, y + 5)
        self.line(x1, y, x2, y)
        self.text((x1 + x2) / 2, y + 17, label, size=13, anchor="middle")

    def cells(self, x: float, y: float, w: float, h: float, labels: list[str], fills: list[str]) -> None:
        for i, (label, fill) in enumerate(zip(labels, fills, strict=True)):
            self.parts.append(
                f"<rect x='{x + i * w:g}' y='{y}' width='{w:g}' height='{h}' fill='{fill}' stroke='{LINE}' "
                "stroke-width='1'/>"
            )
            if label:
                self.text(x + (i + 0.5) * w, y + h / 2 + 4, label, size=12, anchor="middle")

    def __str__(self) -> str:
        tip = f"<path d='M0,0 L8,4 L0,8 z' fill='{LINE}'/></marker>"
        end = "viewBox='0 0 8 8' markerWidth='7' markerHeight='7' refY='4'"
        lines = [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {self.height}' width='{self.width}' "
            "role='img'>",
            f"<title>{escape(self.title)}</title>",
            f"<defs><marker id='tip' {end} refX='7' orient='auto'>{tip}",
            f"<marker id='back' {end} refX='7' orient='auto-start-reverse'>{tip}</defs>",
            f"<rect width='{self.width}' height='{self.height}' rx='8' fill='{PAPER}'/>",
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"
