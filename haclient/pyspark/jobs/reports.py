"""The report of an audit: Parquet tables, a verdict for machines, and one HTML page for people.

The page needs nothing but itself: styles and plots (SVG) are inside, there is no script, and every
text from a log is escaped. It is made on the driver from summaries, of which there are few.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from haclient.pyspark.jobs.verdict import VIOLATIONS_DDL, Audit, Violation, bookmark_text

MAX_TABLE_ROWS: Final = 200
"""Rows of a table in the page: the Parquet tables have all of them."""

MAX_SERIES: Final = 8
"""Lines of a plot that can be told apart."""

_WIDTH: Final = 860
_HEIGHT: Final = 220
_LEFT: Final = 64
_BOTTOM: Final = 26
_TOP: Final = 10
_RIGHT: Final = 12
_DAY_S: Final = 86_400
_COLOURS: Final = (
    "#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#0a7a83", "#bf3989", "#57606a"
)  # fmt: skip

_STYLE: Final = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; background: #fff; margin: 0; }
main { max-width: 940px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 36px 0 8px; }
p.note, figcaption { color: #57606a; font-size: 13px; margin: 4px 0 10px; }
.verdict { border-radius: 6px; padding: 12px 16px; margin: 16px 0; font-size: 17px; }
.good { background: #dafbe1; border-left: 6px solid #1a7f37; }
.bad { background: #ffebe9; border-left: 6px solid #d1242f; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid #d8dee4;
  vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } td.n, th.n { text-align: right; padding-right: 18px; }
td.code { font-family: ui-monospace, monospace; white-space: nowrap; }
figure { margin: 0; } svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: #57606a; }
.key { font-size: 13px; margin-right: 16px; white-space: nowrap; }
.key i { display: inline-block; width: 14px; height: 3px; margin-right: 6px;
  vertical-align: middle; }
"""


class Series(NamedTuple):
    """One line of a plot.

    Attributes:
        name: What it shows.
        points: Time in seconds since 1970, and value; `None` where nothing was measured.
    """

    name: str
    points: Sequence[tuple[float, float | None]]


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
    _write_tables(result, location)
    shown = {name: _rows(result, name) for name in result.tables}
    page = render(result, shown, title=title).encode()
    (directory / "report.html").write_bytes(page)
    verdict = result.verdict() | {"report_sha256": hashlib.sha256(page).hexdigest()}
    text = json.dumps(verdict, indent=2, sort_keys=True) + "\n"
    (directory / "verdict.json").write_text(text, encoding="utf-8")
    return verdict


def _write_tables(result: Audit, location: str) -> None:
    for name, table in result.tables.items():
        table.write.mode("overwrite").parquet(f"{location}/{name}")
    any_table = next(iter(result.tables.values()), None)
    if any_table is None:
        return
    rows = [violation_values(each) for each in result.violations]
    frame = any_table.sparkSession.createDataFrame(rows, VIOLATIONS_DDL)
    frame.coalesce(1).write.mode("overwrite").parquet(f"{location}/violations")


def violation_values(violation: Violation) -> tuple[object, ...]:
    """A violation as a row of the table `violations`."""
    return (
        str(violation.kind),
        violation.bookmark,
        violation.topic,
        violation.position,
        violation.timestamp,
        violation.client,
        violation.sub_id,
        violation.detail,
    )


def _rows(result: Audit, name: str) -> list[dict[str, Any]]:
    """The rows of a table that the page shows."""
    table = result.tables[name]
    if name == "lag":
        return _largest_lags(table)
    if name.startswith("publishers"):
        table = table.orderBy("suspect_runs", "rows", ascending=[False, False])
    limit = MAX_TABLE_ROWS if not name.startswith("latency") else MAX_TABLE_ROWS * 12
    return [row.asDict() for row in table.limit(limit).collect()]


def _largest_lags(table: DataFrame) -> list[dict[str, Any]]:
    """The points of the subscriptions with the largest backlog, with the number of all."""
    both = ["client", "sub_id"]
    # One row for each subscription: few enough to be collected.
    peaks = table.groupBy(*both).agg(sf.max("backlog").alias("peak")).collect()
    worst = sorted(peaks, key=lambda row: (-row["peak"], row["client"], row["sub_id"]))
    if not worst:
        return []
    chosen = [(row["client"], row["sub_id"]) for row in worst[:MAX_SERIES]]
    names = table.sparkSession.createDataFrame(chosen, "client STRING, sub_id STRING")
    points = table.join(sf.broadcast(names), both).orderBy(*both, "start")
    return [row.asDict() | {"subscriptions": len(peaks)} for row in points.collect()]


# --- the page ---------------------------------------------------------------------------------


def render(result: Audit, tables: dict[str, list[dict[str, Any]]], *, title: str) -> str:
    """The HTML page.

    Args:
        result: The audit.
        tables: The rows of its tables that are shown, by name.
        title: The heading.
    """
    parts = [
        f"<h1>{escape(title)}</h1>",
        _verdict_section(result),
        _violation_section(result),
        _facts_section(result),
        *_latency_sections(tables),
        *_lag_sections(tables.get("lag", [])),
        *_publisher_sections(tables),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _verdict_section(result: Audit) -> str:
    total = sum(result.counts.values())
    if result.is_good:
        checked = ", ".join(str(kind) for kind in result.counts)
        return (
            '<div class="verdict good"><strong>Good.</strong> No violation was found.</div>'
            f'<p class="note">Looked for: {escape(checked)}.</p>'
        )
    reasons = "".join(f"<li>{escape(each)}</li>" for each in result.not_verified)
    gaps = f'<p class="note">Not compared:</p><ul>{reasons}</ul>' if reasons else ""
    if not total:
        return (
            '<div class="verdict bad"><strong>Not verified.</strong> No violation was found, but '
            f"not everything could be compared.</div>{gaps}"
        )
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in result.counts.items() if count)
    noun = "violation" if total == 1 else "violations"
    return (
        f'<div class="verdict bad"><strong>Bad.</strong> {total:,} {noun}: {escape(kinds)}.</div>'
        + gaps
    )


def _violation_section(result: Audit) -> str:
    if not result.violations:
        return ""
    shown = result.violations[:MAX_TABLE_ROWS]
    total = sum(result.counts.values())
    note = "" if len(shown) == total else f"The first {len(shown):,} of {total:,}."
    rows = [
        {
            "violation": str(each.kind),
            "bookmark": each.bookmark,
            "topic": each.topic,
            "position": each.position,
            "time": each.timestamp,
            "subscription": f"{each.client or ''} {each.sub_id or ''}".strip() or None,
            "detail": each.detail,
        }
        for each in shown
    ]
    return _section("Violations", _table(rows), note)


def _facts_section(result: Audit) -> str:
    rows = [
        {"figure": name.replace("_", " "), "value": value} for name, value in result.facts.items()
    ]
    return _section("Figures", _table(rows), "") if rows else ""


def _latency_sections(tables: dict[str, list[dict[str, Any]]]) -> Iterable[str]:
    by_stage: dict[str, list[dict[str, Any]]] = {}
    for row in tables.get("latency", []):
        by_stage.setdefault(row["stage"], []).append(row)
    for stage, rows in by_stage.items():
        series = [
            Series(name, [(_seconds(row["start"]), row[name]) for row in rows])
            for name in ("p50", "p95", "p99", "max")
        ]
        yield _section(f"Latency: {stage}", plot(series, _duration), "Percentiles over time.")
    for name, whose in (
        ("latency_by_subscription", "subscription"),
        ("latency_by_publisher", "publisher and topic"),
    ):
        rows = [_latency_row(row) for row in tables.get(name, [])[:MAX_TABLE_ROWS]]
        if rows:
            yield _section(f"Latency by {whose}", _table(rows), "")


def _latency_row(row: dict[str, Any]) -> dict[str, Any]:
    shown = dict(row)
    if "publisher_id" in shown:
        shown["publisher_id"] = str(shown["publisher_id"] % 2**64)
    durations = ("p50", "p95", "p99", "max")
    return {k: _duration(v) if k in durations and v is not None else v for k, v in shown.items()}


def _lag_sections(rows: list[dict[str, Any]]) -> Iterable[str]:
    by_subscription: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_subscription.setdefault(f"{row['client']} {row['sub_id']}", []).append(row)
    chosen = sorted(
        by_subscription.items(), key=lambda item: -max(row["backlog"] for row in item[1])
    )[:MAX_SERIES]
    if not chosen:
        return
    count = rows[0].get("subscriptions", len(by_subscription))
    note = f"The {len(chosen)} subscriptions with the largest backlog of {count}."
    for title, column, unit in (
        ("Lag: messages logged and not yet received", "backlog", _count),
        ("Lag: greatest age of a received message", "seconds_behind", _duration),
    ):
        series = [
            Series(name, [(_seconds(row["start"]), row[column]) for row in of_one])
            for name, of_one in chosen
        ]
        yield _section(title, plot(series, unit), note)


def _publisher_sections(tables: dict[str, list[dict[str, Any]]]) -> Iterable[str]:
    for name, rows in tables.items():
        if not name.startswith("publishers") or not rows:
            continue
        shown = [
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


def _section(title: str, content: str, note: str) -> str:
    remark = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{remark}{content}</section>"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """A table; columns without any value are left out."""
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    head = "".join(f"<th{_class(name, rows)}>{escape(name)}</th>" for name in names)
    lines = [
        "".join(f"<td{_class(name, rows)}>{escape(_text(row[name]))}</td>" for name in names)
        for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _class(name: str, rows: Sequence[dict[str, Any]]) -> str:
    if "bookmark" in name or name == "publisher":
        return ' class="code"'
    values = [row[name] for row in rows if row[name] is not None]
    return ' class="n"' if all(isinstance(value, int | float) for value in values) else ""


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


def plot(series: Sequence[Series], unit: Callable[[float], str]) -> str:
    """A plot over time as SVG, with its key.

    Args:
        series: The lines; at most `MAX_SERIES` of them are drawn.
        unit: Makes the text of a value on the axis.
    """
    drawn = [each for each in series[:MAX_SERIES] if any(v is not None for _, v in each.points)]
    if not drawn:
        return '<p class="note">Nothing was measured.</p>'
    times = [at for each in drawn for at, _ in each.points]
    values = [value for each in drawn for _, value in each.points if value is not None]
    begin, end = min(times), max(times)
    low, high = min(0.0, *values), max(values)
    span, height = (end - begin) or 1.0, (high - low) or 1.0

    def x(at: float) -> float:
        return _LEFT + (at - begin) / span * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low) / height * (_HEIGHT - _BOTTOM - _TOP)

    parts = [_horizontal(y(v), unit(v)) for v in (low, low + height / 2, low + height)]
    parts += [_vertical(x(at), at, end - begin) for at in _ticks(begin, end)]
    parts += [
        _line([(x(at), y(v)) for at, v in each.points if v is not None], colour)
        for each, colour in zip(drawn, _COLOURS, strict=False)
    ]
    key = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(each.name)}</span>'
        for each, colour in zip(drawn, _COLOURS, strict=False)
    )
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'
        f"<figcaption>{key}</figcaption></figure>"
    )


def _line(points: Sequence[tuple[float, float]], colour: str) -> str:
    if len(points) == 1:
        ((x, y),) = points
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _horizontal(y: float, text: str) -> str:
    return (
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d8dee4"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _vertical(x: float, at: float, span_s: float) -> str:
    form = "%H:%M:%S" if span_s < _DAY_S else "%m-%d %H:%M"
    text = datetime.fromtimestamp(at, UTC).strftime(form)
    return f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{text}</text>'


def _ticks(begin: float, end: float) -> list[float]:
    if end <= begin:
        return [begin]
    return [begin + (end - begin) * (i + 0.5) / 6 for i in range(6)]


def _seconds(at: datetime) -> float:
    return at.timestamp()


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _duration(seconds: float) -> str:
    size = abs(seconds)
    if size >= 1 or size == 0:
        return f"{seconds:,.4g} s"
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.3g} ms" if abs(milliseconds) >= 1 else f"{seconds * 1e6:,.3g} µs"
