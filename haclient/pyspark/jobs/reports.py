"""The report of an audit: Parquet tables, a verdict for machines, and one HTML page for people.

The page needs nothing but itself: styles and plots (SVG) are inside, there is no script, and every
text from a log is escaped. It is made on the driver from summaries, of which there are few.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark.sql import functions as sf

from haclient.pyspark.jobs.latency import upper_edge
from haclient.pyspark.jobs.report_words import figure_meaning, kind_meaning
from haclient.pyspark.jobs.verdict import VIOLATIONS_DDL, Audit, FindingKind, bookmark_text

MAX_TABLE_ROWS: Final = 200
"""Rows of a table in the page: the Parquet tables have all of them."""

MAX_SERIES: Final = 8
"""Lines of a plot that can be told apart."""

_WIDTH: Final = 860
_HEIGHT: Final = 230
_LEFT: Final = 70
_BOTTOM: Final = 26
_TOP: Final = 12
_RIGHT: Final = 30  # half a label below the right edge
_DAY_S: Final = 86_400
_LOG_SPAN: Final = 30  # values that differ by more are drawn on a logarithmic scale
_DURATIONS: Final = ("p50", "p95", "p99", "max")

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1f2328; --soft: #59636e; --line: #d1d9e0; --page: #fff;
  --good: #dafbe1; --bad: #ffebe9; --green: #1a7f37; --red: #cf222e; --c0: #0969da; --c1: #cf222e;
  --c2: #1a7f37; --c3: #9a6700; --c4: #8250df; --c5: #0a7a83; --c6: #bf3989; --c7: #59636e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --line: #3d444d;
  --page: #0d1117; --good: #12261e; --bad: #2d1617; --green: #3fb950; --red: #f85149;
  --c0: #4493f8; --c1: #f85149; --c2: #3fb950; --c3: #d29922; --c4: #ab7df8; --c5: #39c5cf;
  --c6: #db61a2; --c7: #9198a1; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  margin: 0; }
main { max-width: 940px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 8px; } h3 { font-size: 15px; margin: 20px 0 4px; }
p.note, figcaption { color: var(--soft); font-size: 13px; margin: 4px 0 10px; }
.verdict { border-radius: 6px; padding: 12px 16px; margin: 16px 0; font-size: 17px; }
.good { background: var(--good); border-left: 6px solid var(--green); }
.bad { background: var(--bad); border-left: 6px solid var(--red); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { text-align: left; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } td.n, th.n { text-align: right; padding-right: 18px; }
td.code { font-family: ui-monospace, monospace; white-space: nowrap; } td.t { white-space: nowrap; }
td.wide { min-width: 220px; }
@media (max-width: 600px) { main { padding: 12px 12px 40px; } td.wide { min-width: 150px; }
  td.n, th.n { padding-right: 12px; } }
figure { margin: 0; } svg { width: 100%; min-width: 560px; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .grid { stroke: var(--line); } svg .bar { fill: var(--c0); }
.key { font-size: 13px; margin-right: 16px; white-space: nowrap; }
.key i { display: inline-block; width: 14px; height: 3px; margin-right: 6px;
  vertical-align: middle; }
"""

Rows: TypeAlias = list[dict[str, Any]]
Lines: TypeAlias = Mapping[str, Sequence[tuple[float, float | None]]]
"""Of each line of a plot: times in seconds since 1970, and values where something was measured."""


def write_report(
    result: Audit, directory: Path, *, title: str = "Audit", tables: str | None = None
) -> dict[str, Any]:
    """Write `report.html`, `verdict.json` and the tables of an audit.

    `verdict.json` is written last and names the SHA-256 of the page, so that a page that was
    changed later can be told.

    Args:
        result: The audit.
        directory: Where the page and the verdict are written, on the driver; created if missing.
        title: The heading of the page.
        tables: Where the Parquet tables are written: a directory that every worker can reach.
            `tables` in the directory by default, which is right where all workers run on this
            machine.

    Returns:
        The contents of `verdict.json`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # Hadoop takes what follows the scheme as it is: an encoded blank would be another directory.
    location = tables or f"file://{directory.absolute() / 'tables'}"
    for name, table in result.tables.items():
        table.write.mode("overwrite").parquet(f"{location}/{name}")
    for table in [*result.tables.values()][:1]:
        rows = [(str(each.kind), *astuple(each)[1:]) for each in result.violations]
        frame = table.sparkSession.createDataFrame(rows, VIOLATIONS_DDL)
        frame.coalesce(1).write.mode("overwrite").parquet(f"{location}/violations")
    shown = {name: _rows(result, name) for name in result.tables}
    page = render(result, shown, title=title).encode()
    (directory / "report.html").write_bytes(page)
    verdict = result.verdict() | {"report_sha256": hashlib.sha256(page).hexdigest()}
    text = json.dumps(verdict, indent=2, sort_keys=True) + "\n"
    (directory / "verdict.json").write_text(text, encoding="utf-8")
    return verdict


def _rows(result: Audit, name: str) -> Rows:
    """The rows of a table that the page shows."""
    table = result.tables[name]
    if name == "lag":
        # The points of the subscriptions with the largest backlog, with the number of all.
        both = ["client", "sub_id"]
        peaks = table.groupBy(*both).agg(sf.max("backlog").alias("peak")).collect()
        worst = sorted(peaks, key=lambda row: (-row["peak"], row["client"], row["sub_id"]))
        chosen = [(row["client"], row["sub_id"]) for row in worst[:MAX_SERIES]]
        names = table.sparkSession.createDataFrame(chosen, "client STRING, sub_id STRING")
        points = table.join(sf.broadcast(names), both).orderBy(*both, "start").collect()
        return [row.asDict() | {"subscriptions": len(peaks)} for row in points]
    if name.startswith("publishers"):
        table = table.orderBy("suspect_runs", "rows", ascending=[False, False])
    limit = MAX_TABLE_ROWS if not name.startswith("latency") else MAX_TABLE_ROWS * 12
    return [row.asDict() for row in table.limit(limit).collect()]


# --- the page ---------------------------------------------------------------------------------


def render(result: Audit, tables: dict[str, Rows], *, title: str) -> str:
    """The HTML page; `tables` has the rows that it shows, by the name of the table."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        _verdict(result),
        *_violations(result),
        *_figures(result),
        *_latency(tables),
        *_lag(tables.get("lag", [])),
        *_publishers(tables),
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _verdict(result: Audit) -> str:
    total = sum(result.counts.values())
    reasons = "".join(f"<li>{escape(each)}</li>" for each in result.not_verified)
    gaps = f'<p class="note">Not compared:</p><ul>{reasons}</ul>' if reasons else ""
    if total:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in result.counts.items() if count)
        noun = "violation" if total == 1 else "violations"
        said = f"<strong>Bad.</strong> {total:,} {noun}: {escape(kinds)}."
    elif gaps:
        said = (
            "<strong>Not verified.</strong> No violation was found, but not everything could be "
            "compared."
        )
    else:
        said = "<strong>Good.</strong> No violation was found."
    looked = ", ".join(str(kind) for kind in result.counts)
    note = f'<p class="note">Looked for: {escape(looked)}.</p>' if looked else ""
    colour = "good" if result.is_good else "bad"
    return f'<div class="verdict {colour}">{said}</div>{gaps}{note}'


def _violations(result: Audit) -> Iterator[str]:
    """Each kind with what it means, and with its messages."""
    if not result.violations:
        return
    yield "<section><h2>Violations</h2>"
    order = [*FindingKind]
    ordered = sorted(result.violations, key=lambda each: order.index(each.kind))
    for kind, group in groupby(ordered, lambda each: each.kind):
        found = [*group]
        rows: Rows = [
            {
                "bookmark": each.bookmark,
                "what was found": each.detail,
                "topic": each.topic,
                "position": each.position,
                "time": each.timestamp,
                "subscription": f"{each.client or ''} {each.sub_id or ''}".strip() or None,
            }
            for each in found[:MAX_TABLE_ROWS]
        ]
        total = result.counts.get(kind, len(found))
        some = f" The first {len(rows):,} are shown." if len(rows) < total else ""
        yield f"<h3>{total:,} {escape(kind)}</h3>{_note(kind_meaning(kind) + some)}{_table(rows)}"
    yield "</section>"


def _figures(result: Audit) -> Iterator[str]:
    rows: Rows = [
        {"figure": name.replace("_", " "), "value": _text(value), "meaning": figure_meaning(name)}
        for name, value in result.facts.items()
    ]
    if rows:
        yield _section("Figures", _table(rows, right=("value",)), "")


def _latency(tables: dict[str, Rows]) -> Iterator[str]:
    bars = {stage: [*rows] for stage, rows in _by(tables.get("latency_histogram", []), "stage")}
    for stage, rows in _by(tables.get("latency", []), "stage"):
        parts: list[str] = []
        if stage in bars:
            note = "How many messages took how long; the scale of times is logarithmic."
            parts.append(_note(note) + histogram(bars[stage]))
        if len(rows) > 1:
            lines = {name: _points(rows, name) for name in _DURATIONS}
            note = "Percentiles over time: of 100 messages, 50, 95 or 99 took at most so long."
            parts.append(_note(note) + plot(lines, _duration))
        if parts:
            yield _section(f"Latency: {stage}", "".join(parts), "")
    for whose in ("subscription", "publisher"):
        rows = [_latency_row(row) for row in tables.get(f"latency_by_{whose}", [])]
        if rows:
            yield _section(f"Latency by {whose}", _table(rows[:MAX_TABLE_ROWS]), "")


def _latency_row(row: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        k: _duration(v) if k in _DURATIONS and v is not None else v for k, v in row.items()
    }
    if "publisher_id" in shown:
        shown["publisher_id"] = str(shown["publisher_id"] % 2**64)
    return shown


def _lag(rows: Rows) -> Iterator[str]:
    by_one = {f"{client} {sub_id}": of for (client, sub_id), of in _by(rows, "client", "sub_id")}
    if not any(len(points) > 1 for points in by_one.values()):
        return
    count = rows[0].get("subscriptions", len(by_one))
    note = f"The {min(count, MAX_SERIES)} subscriptions with the largest backlog of {count}."
    for title, column, unit in (
        ("Lag: messages logged and not yet received", "backlog", _count),
        ("Lag: greatest age of a received message", "seconds_behind", _duration),
    ):
        lines = {name: _points(of, column) for name, of in by_one.items()}
        yield _section(title, plot(lines, unit), note)


def _points(rows: Rows, column: str) -> list[tuple[float, float | None]]:
    return [(row["start"].timestamp(), row[column]) for row in rows]


def _publishers(tables: dict[str, Rows]) -> Iterator[str]:
    for name, rows in tables.items():
        if not name.startswith("publishers") or not rows:
            continue
        shown: Rows = [
            {
                "publisher": str(row["publisher_id"] % 2**64),
                "messages": row["rows"],
                "first bookmark": bookmark_text(row["publisher_id"], row["first_sequence"]),
                "last bookmark": bookmark_text(row["publisher_id"], row["last_sequence"]),
                "first position": row["first_position"],
                "last position": row["last_position"],
            }
            for row in rows
        ]
        note = f"At most {MAX_TABLE_ROWS}: those with violations first, then the busiest."
        yield _section(name.replace("_", " ").capitalize(), _table(shown), note)


def _by(rows: Rows, *names: str) -> Iterator[tuple[Any, Rows]]:
    """The rows of each value of some columns, in the order in which these come first."""
    groups: dict[Any, Rows] = {}
    for row in rows:
        key = row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)
        groups.setdefault(key, []).append(row)
    yield from groups.items()


def _section(title: str, content: str, note: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{_note(note)}{content}</section>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


def _table(rows: Rows, *, right: Sequence[str] = ()) -> str:
    """A table; columns without any value are left out."""
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    kinds = {name: "n" if name in right else _class(name, rows) for name in names}
    head = "".join(f'<th class="{kinds[name]}">{escape(name)}</th>' for name in names)
    lines = [
        "".join(f'<td class="{kinds[name]}">{escape(_text(row[name]))}</td>' for name in names)
        for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _class(name: str, rows: Rows) -> str:
    if "bookmark" in name or name == "publisher":
        return "code"
    values = [row[name] for row in rows if row[name] is not None]
    if all(isinstance(value, int | float) for value in values):
        return "n"
    return "t" if isinstance(values[0], datetime) or len(str(values[0])) < 24 else "wide"  # noqa: PLR2004 - what fits into a column


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
        case _:
            return str(value)


# --- plots ------------------------------------------------------------------------------------


def plot(lines: Lines, unit: Callable[[float], str]) -> str:
    """A plot over time as SVG: at most `MAX_SERIES` lines, and none that is a single point."""
    drawn = [
        (name, points)
        for name, of_one in [*lines.items()][:MAX_SERIES]
        if len(points := [(at, v) for at, v in of_one if v is not None]) > 1
    ]
    if not drawn:
        return _note("Too little was measured for a plot.")
    times = [at for _, points in drawn for at, _ in points]
    values = [value for _, points in drawn for _, value in points]
    begin, end = min(times), max(times)
    y, marks = _scale(values)
    parts = [_horizontal(y(mark), unit(mark)) for mark in marks]
    span = (end - begin) or 1.0
    inner = _WIDTH - _LEFT - _RIGHT
    form = "%H:%M:%S" if span < _DAY_S else "%m-%d %H:%M"
    for n in range(6):
        at = datetime.fromtimestamp(begin + span * (n + 0.5) / 6, UTC)
        parts.append(_below(_LEFT + inner * (n + 0.5) / 6, at.strftime(form)))
    for number, (_, points) in enumerate(drawn):
        text = " ".join(
            f"{_LEFT + (at - begin) / span * inner:.1f},{y(value):.1f}" for at, value in points
        )
        style = f"stroke:var(--c{number})"
        parts.append(f'<polyline points="{text}" fill="none" style="{style}" stroke-width="1.6"/>')
    keys = "".join(
        f'<span class="key"><i style="background:var(--c{number})"></i>{escape(name)}</span>'
        for number, (name, _) in enumerate(drawn)
    )
    return _figure(parts, keys)


def histogram(rows: Rows) -> str:
    """Bars for the rows of `latency_histogram` of one stage, as SVG."""
    timed = [(row["bucket"], row["messages"]) for row in rows if row["bucket"] is not None]
    others = sum(row["messages"] for row in rows if row["bucket"] is None)
    note = f"{others:,} took no time or less: the clocks of two machines differ." if others else ""
    if not timed:
        return _note(note)
    inner, ground = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _BOTTOM
    first, count = min(timed)[0], max(timed)[0] - min(timed)[0] + 1
    width = min(inner / count, 60.0)
    top = max(messages for _, messages in timed)
    marks = (0, top / 2, top) if top > 1 else (0, top)
    parts = [_horizontal(ground - (ground - _TOP) * mark / top, _count(mark)) for mark in marks]
    for bucket, messages in timed:
        x, height = _LEFT + (bucket - first) * width, messages / top * (ground - _TOP)
        above, up_to = (_duration(upper_edge(each)) for each in (bucket - 1, bucket))
        parts.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{ground - height:.1f}" width="{width - 2:.1f}" '
            f'height="{height:.1f}"><title>{above} to {up_to}: {messages:,}</title></rect>'
        )
    parts += [
        _below(_LEFT + n * width, _duration(upper_edge(first + n - 1)))
        for n in range(0, count + 1, math.ceil(64 / width))
    ]
    return _figure(parts, "") + _note(note)


def _scale(values: Sequence[float]) -> tuple[Callable[[float], float], list[float]]:
    """From a value to its height, and values to mark; logarithmic where small ones would vanish."""
    low, high = min(values), max(values)
    ground, height = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP
    if low > 0 and high / low > _LOG_SPAN:
        bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
        marks = [10.0**n for n in range(bottom, top + 1)]
        return lambda value: ground - (math.log10(value) - bottom) / (top - bottom) * height, marks
    low = min(low, 0.0)
    span = (high - low) or 1.0
    marks = [low, low + span / 2, low + span]
    return lambda value: ground - (value - low) / span * height, marks


def _figure(parts: Iterable[str], keys: str) -> str:
    return (
        f'<figure><div class="scroll"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f"{''.join(parts)}</svg></div><figcaption>{keys}</figcaption></figure>"
    )


def _horizontal(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _below(x: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(text)}</text>'


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _duration(seconds: float) -> str:
    size = abs(seconds)
    if size >= 1 or size == 0:
        return f"{seconds:,.4g} s"
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.3g} ms" if abs(milliseconds) >= 1 else f"{seconds * 1e6:,.3g} µs"
