"""Draw `overview.svg`: the processes, their files, and three kills that lose nothing.

`python docs/draw_overview.py` writes the picture beside this file; a test compares the two.
"""

from pathlib import Path

__all__ = ["PICTURE", "drawing"]

PICTURE = Path(__file__).with_name("overview.svg")

WIDTH, HEIGHT = 760, 392
# The picture has a ground of its own, so that it can be read on a page of any colour.
STYLE = """
  svg { --ground: #ffffff; --ink: #1f2933; --soft: #5b6773; --line: #7b8794; --client: #e3edfb;
        --broker: #e4f3ea; --disk: #fdf3d8; --kill: #c62828; }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #14181d; --ink: #e8edf2; --soft: #a9b4bf; --line: #8a96a3; --client: #1d3354;
          --broker: #173a29; --disk: #463a17; --kill: #ff7b72; }
  }
  text { font: 18px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif;
         fill: var(--ink); text-anchor: middle; }
  .name { font-weight: 600; }
  .note { font-size: 15px; fill: var(--soft); }
  .legend { text-anchor: start; }
  .number { font-size: 15px; font-weight: 700; fill: var(--ground); }
  rect, ellipse, path { stroke: var(--line); stroke-width: 1.5; }
  .ground { fill: var(--ground); stroke: none; }
  .client { fill: var(--client); }
  .broker { fill: var(--broker); }
  .disk { fill: var(--disk); }
  .wire { fill: none; stroke-width: 2; }
  .standby { stroke-dasharray: 5 5; }
  .head { fill: var(--line); stroke: none; }
  .kill { fill: var(--kill); stroke: none; }
"""


def text(x: int, y: int, words: str, kind: str = "") -> str:
    """A line of words around `x`, or from there on in the legend."""
    return f'<text x="{x}" y="{y}" class="{kind}">{words}</text>'


def box(x: int, y: int, kind: str, *, name: str, note: str) -> list[str]:
    """A process."""
    return [
        f'<rect x="{x}" y="{y}" width="170" height="62" rx="8" class="{kind}"/>',
        text(x + 85, y + 27, name, "name"),
        text(x + 85, y + 49, note, "note"),
    ]


def disk(x: int, y: int, name: str, *, width: int = 150) -> list[str]:
    """A file, as a cylinder."""
    right = x + width
    return [
        f'<path d="M{x} {y}v32a{width // 2} 9 0 0 0 {width} 0V{y}" class="disk"/>',
        f'<ellipse cx="{(x + right) // 2}" cy="{y}" rx="{width // 2}" ry="9" class="disk"/>',
        text((x + right) // 2, y + 29, name),
    ]


def arrow(path: str, kind: str = "") -> str:
    """A line with a head at its end."""
    return f'<path d="{path}" class="wire {kind}" marker-end="url(#head)"/>'


def kill(x: int, y: int, number: int) -> list[str]:
    """The mark of a kill, with its number in the legend."""
    return [
        f'<circle cx="{x}" cy="{y}" r="13" class="kill"/>',
        text(x, y + 5, f"{number}", "number"),
    ]


KILLS = [
    (190, 102, "Publisher killed: the next one sends what the store still has."),
    (465, 32, "Broker killed: both programs go on with the other one."),
    (740, 102, "Subscriber killed: the next one resumes where it stopped."),
]
FRAME = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">
<title>A publisher with a publish store, two brokers, a subscriber with a bookmark store</title>
<style>{STYLE}</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"
 orient="auto"><path d="M0 0L10 5L0 10z" class="head"/></marker></defs>
<rect width="{WIDTH}" height="{HEIGHT}" rx="12" class="ground"/>
%s
</svg>
"""


def drawing() -> str:
    """The whole picture."""
    parts = [
        *box(20, 102, "client", name="Publisher", note="your program"),
        *disk(30, 206, "publish store"),
        arrow("M105 164V194"),
        *box(295, 32, "broker", name="Broker A", note="log of all messages"),
        *box(295, 182, "broker", name="Broker B", note="the same log"),
        arrow("M350 94V179"),
        arrow("M375 182V97"),
        text(430, 143, "replicate", "note"),
        *box(570, 102, "client", name="Subscriber", note="your program"),
        *disk(580, 206, "bookmark store"),
        arrow("M655 164V194"),
        arrow("M190 122L292 68"),
        text(224, 82, "publish", "note"),
        arrow("M190 146L292 206", "standby"),
        arrow("M465 68L567 122"),
        text(540, 82, "deliver", "note"),
        arrow("M465 206L567 146", "standby"),
        text(238, 214, "fail-over", "note"),
        text(522, 214, "fail-over", "note"),
    ]
    for number, (x, y, words) in enumerate(KILLS, start=1):
        parts += kill(x, y, number)
        parts += kill(38, 262 + 32 * number, number)
        parts.append(text(62, 268 + 32 * number, words, "legend"))
    return FRAME % "\n".join(parts)


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
