"""The accuracy report in Markdown: made from a comparison and the chip files alone, so that it is the same on every machine."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from trn_jax.chips.loader import describe_chip, list_chips
from trn_jax.software import load_software
from trn_jax.timing.overlap import KERNEL
from trn_jax.units import MIB, format_quantity
from trn_jax.validation.compare import Compared, Summary, by_kind, summarise
from trn_jax.validation.frozen import frozen_rows
from trn_jax.validation.measurement import Measurement
from trn_jax.validation.sizes import Missing, number_of
from trn_jax.validation.text import SUMMARY_COLUMNS, summary_cells

PRODUCTS = ("matmul", "bmm", "swiglu", "lora", "rmsnorm_matmul", "matmul_add_rmsnorm", "add_rmsnorm_matmul", "transpose_matmul")
BADLY = 0.15  # rows with a larger error are explained
# Why groups are badly predicted: (pattern on the row's id, reason). The first that is found counts.
REASONS = (
    (r"pytorch", "A graph of the framework with its own loops, no kernel; the function alone is what a kernel could do."),
    (r"mamba", "The published schedule spills or leaves engines waiting; the fastest kernels of these functions are within 6 to 15 %."),
    (r"gemm-[0-4]|streaming", "A schedule on the way to the best one, which takes a fraction of the time for the same function."),
    (
        r"conv1d",
        "Schedules on the way to the final one, which still takes 1.7 times the passes of Vector and Scalar that the function needs.",
    ),
    (r"conv", "Kernels of a course; the row does not give their tiling."),
    (r"layernorm", "Flagged by its source as implausible: it is a hundred times what its passes need."),
    (
        r"block-inf2",
        "Flagged by its source as power-limited. The feed-forward width is not stated; Llama's is taken, worth 4 % either way.",
    ),
    (r"int8", "How the compiler converts int8 operands is not published; timed as a cast and a bf16 product."),
    (
        r"vecadd",
        "100 tiles of 1 KiB took 0.4 us each where 200 tiles of 512 B of the same source took 1 us: no one issue time explains both.",
    ),
    (r"bmm_softmax", "Spills 1.5 GB, timed at the rate of long DMA rows: the counters do not say how short the rows of the spills are."),
    (r"matmul_add_rmsnorm", "Its transposes are made eight times over; with them counted it is within a few per cent."),
    (r"k5120", "Reads its operand again for each 512 columns (9 GB); with the bytes counted it is within a few per cent."),
    (r"nccom-doc-allr-2-33554432", "One sample of uint8 whose float32 neighbours, half and twice its size, are within 11 %."),
    (
        r"nccom-plot-allr-2",
        "One line for all sizes; the published curve of two cores bends at 128 KiB and at 4 MiB.",
    ),
    (r"nccom", "Small collectives: samples with a launch floor of 58 us and more, and all-gathers, whose own latency is not calibrated."),
)


def report_markdown(rows: Sequence[Compared], measurements: Sequence[Measurement]) -> str:
    """Markdown of the whole report.

    Args:
        rows: From `compare`.
        measurements: What was compared, for the sources.

    Returns:
        Text that ends in a newline.
    """
    large = {row.id for row in measurements if row.kind == "collective" and _size_bytes(row) >= MIB}
    parts = [_head(rows), _tables(rows, large), _held_out(rows), _constants(), _badly(rows), _not_predicted(rows), _every_row(rows)]
    sources = sorted({row.text("source") for row in measurements if row.text("source")})
    parts.append("## Sources\n\n" + "\n".join(f"- {source}" for source in sources))
    return "\n\n".join(parts) + "\n"


def _size_bytes(row: Measurement) -> float:
    try:
        return number_of(row, "bytes", 0.0)
    except Missing:
        return 0.0


def _head(rows: Sequence[Compared]) -> str:
    return f"""# Accuracy

Predicted against published figures: {len(rows)} rows, {sum(row.error is not None for row in rows)} predicted. Made by
`trn-jax validate data/measured.csv --report docs/accuracy.md`; nothing in it depends on the machine.

error = predicted / published - 1 in the row's own unit; headroom = published time / time of the plain function.

## Protocol

- `bound` (datasheet, compulsory bytes), `latency` of the plain function (a good schedule at calibrated rates), the same with the byte and
  transpose counters of a published profile, and `latency` of an explicit kernel where a row gives its tiles. A kernel that is slower than
  the function's latency has headroom; that is no error.
- "From the function" uses nothing but the mathematics and the shapes; "by the row's own path" the counters or the tiles where a row gives
  them, and the function where it does not.
- Groups are a workload with its shapes. They, the fastest row of each group, dtype and chip ("tuned"), the half of a split each is in,
  and the rows behind a constant of a chip file are frozen in `trn_jax/validation/data/frozen.csv`, before the model was changed. Mended in
  it afterwards: the Mamba groups have other names, two convolutions no longer count as behind a constant, and nine faster published
  times of the same groups came in and are the tuned ones (the third Mamba kernel, the final depthwise convolution).
- No constant was fitted to this table by this work. Rows that had set one before are marked and left out where it says "held out".
- Rows marked UPPER BOUND are thresholds: listed, never counted."""


def _tables(rows: Sequence[Compared], large: set[str]) -> str:
    kernels = [row for row in rows if row.kind != "collective"]
    tuned = [row for row in kernels if row.tuned]
    products = [row for row in tuned if row.group and row.group.split()[0] in PRODUCTS and "int8" not in row.dtype]
    counted = [row for row in kernels if row.path == "counters"]
    choices = {
        "tuned products": products,
        "all tuned kernels": tuned,
        "tuned kernels that no source flags": [row for row in tuned if not is_doubtful(row)],
    }
    summaries = {}
    for name, found in choices.items():
        summaries[f"{name}, from the function"] = summarise(found, "function_error")
        summaries[f"{name}, by the row's own path"] = summarise(found)
    summaries["tiles given (explicit kernels)"] = summarise(row for row in kernels if row.path == "kernel")
    summaries["byte and transpose counters given"] = summarise(counted)
    summaries["memory bandwidth"] = summarise(row for row in kernels if row.kind == "memory_bw")
    summaries["all-reduce and all-gather in one server, from 1 MiB"] = summarise(row for row in rows if row.id in large)
    return "\n\n".join(["## By what is known about the row", _table(summaries), "## By kind, every row", _table(by_kind(rows))])


def is_doubtful(row: Compared) -> bool:
    """Whether the source itself flags a row as implausible, or it is no kernel of the function."""
    return bool(re.search(r"int8|layernorm-v1|pytorch", row.id))


def _held_out(rows: Sequence[Compared]) -> str:
    frozen = frozen_rows()
    kernels = [row for row in rows if row.kind != "collective" and row.tuned and not is_doubtful(row)]
    tables = {"tuned, held out (no constant from it)": summarise((r for r in kernels if not r.used_for_calibration), "function_error")}
    for half in "ab":
        chosen = [row for row in kernels if row.id in frozen and frozen[row.id].half == half]
        tables[f"tuned, half {half}"] = summarise(chosen, "function_error")
    tables |= {
        f"counters, half {half}": summarise(r for r in rows if r.path == "counters" and r.id in frozen and frozen[r.id].half == half)
        for half in "ab"
    }
    text = ["## Held out", _table(tables), _leave_one_out(rows)]
    return "\n\n".join(part for part in text if part)


def _leave_one_out(rows: Iterable[Compared]) -> str:
    """The rate of the Tensor Engine from all groups behind it but one, tried on that one."""
    frozen = frozen_rows()
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row.headroom is not None and row.id in frozen and frozen[row.id].sets == "tensor.rate":
            ratios.setdefault(row.group or "", []).append(row.headroom)
    if len(ratios) < 2:
        return ""
    means = {group: statistics.fmean(values) for group, values in ratios.items()}
    lines = ["`tensor.rate` of NeuronCore-v2 from the other groups, tried on the one left out:", "", "| group | error |", "|---|---|"]
    for group, mean in means.items():
        others = statistics.fmean(value for name, value in means.items() if name != group)
        lines.append(f"| {group} | {others / mean - 1:+.1%} |")
    return "\n".join(lines)


def _constants() -> str:
    lines = ["## Calibrated constants of one core", "", "| constant | value | range | twin | evidence |", "|---|---|---|---|---|"]
    for name in list_chips():
        if name not in ("trainium1", "trainium2"):
            continue
        for row in describe_chip(name):
            if row.basis == "calibrated" and not row.key.startswith("link."):
                span = (
                    f"{format_quantity(row.low, row.unit)} to {format_quantity(row.high, row.unit)}"
                    if row.low is not None and row.high is not None
                    else "-"
                )
                twin = {"tensor.rate": "tensor.clock_hz", "dma.rate": "dma.bandwidth_bytes_per_s"}.get(row.key, "none published")
                lines.append(f"| {name} {row.key} | {format_quantity(row.value, row.unit)} | {span} | {twin} | {row.source} |")
    for name, overhead in load_software().on("NeuronCore-v2").items():
        value, low, high = (format_quantity(seconds, "s") for seconds in (overhead.value_s, overhead.low_s, overhead.high_s))
        lines.append(f"| software {name} | {value} | {low} to {high} | none published | {overhead.basis}: {overhead.source} |")
    evidence = "Published kernels: the longest compute engine and a fifth of the others, DMA beside them"
    lines.append(f"| overlap of one kernel | {KERNEL:g} | - | 1 | {evidence} |")
    return "\n".join([*lines, "", "Trainium3, logical cores of two and collectives of Trainium2 are not calibrated at all."])


def _badly(rows: Sequence[Compared]) -> str:
    lines = [f"## Predicted worse than {BADLY:.0%}, and why", "", "| rows | error | headroom | why |", "|---|---|---|---|"]
    found: dict[str, list[Compared]] = {}
    for row in rows:
        if row.error is not None and abs(row.error) > BADLY and not row.upper_bound:
            why = next((reason for pattern, reason in REASONS if re.search(pattern, row.id)), "Not explained.")
            found.setdefault(why, []).append(row)
    for why, members in found.items():
        errors = sorted(row.error for row in members if row.error is not None)
        headroom = sorted(row.headroom for row in members if row.headroom is not None)
        names = members[0].id if len(members) == 1 else f"{len(members)} rows such as {members[0].id}"
        lines.append(f"| {names} | {_span(errors, '{:+.0%}')} | {_span(headroom, '{:.2f}')} | {why} |")
    return "\n".join(lines)


def _span(values: Sequence[float], form: str) -> str:
    ends = [form.format(value) for value in (values[0], values[-1])]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _not_predicted(rows: Sequence[Compared]) -> str:
    reasons = Counter(row.reason for row in rows if row.reason)
    lines = ["## Not predicted", "", "| rows | reason |", "|---|---|"]
    return "\n".join([*lines, *(f"| {count} | {_cell(reason)} |" for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1]))])


def _every_row(rows: Sequence[Compared]) -> str:
    columns = ("row", "path", "predicted", "published", "unit", "error", "function", "bound", "headroom", "tuned", "calibration")
    lines = ["## Every kernel row", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        if row.error is None or row.kind == "collective":
            continue
        cells = [
            _cell(row.id),
            row.path,
            f"{row.predicted:.4g}",
            f"{row.published:.4g}",
            row.unit,
            f"{row.error:+.1%}",
            f"{row.function_error:+.1%}",
        ]
        marks = ["yes" if row.tuned else "", "yes" if row.used_for_calibration else ""]
        lines.append("| " + " | ".join(map(str, [*cells, f"{row.bound:.4g}", f"{row.headroom:.2f}", *marks])) + " |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text of others in a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def _table(summaries: dict[str, Summary]) -> str:
    head = "| " + " | ".join(("", *SUMMARY_COLUMNS)) + " |"
    lines = ["| " + " | ".join((name, *summary_cells(found))) + " |" for name, found in summaries.items()]
    return "\n".join([head, "|" + "---|" * (1 + len(SUMMARY_COLUMNS)), *lines])
