"""Published kernels: the way from the datasheet bound to the published time, in named shares of seconds.

    python experiments/e04_headroom/run.py [--smoke] [--out DIR]

Writes results.json, one record per predicted row of data/measured.csv, and headroom.md, the same as tables. See README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import trn_jax
from trn_jax.chips import Chip
from trn_jax.units import MB
from trn_jax.validation.compare import Compared, compare
from trn_jax.validation.counters import READ, TRANSPOSED, WRITTEN, has_counters, with_counters
from trn_jax.validation.figure import seconds_of
from trn_jax.validation.measurement import Measurement, read_measurements
from trn_jax.validation.predict import Predictor
from trn_jax.validation.report import is_doubtful

TABLE = Path(__file__).parents[2] / "data" / "measured.csv"
SMOKE = ("nkibench-adamw_m10944_n2048-best-found", "cs149-vecadd-trn1-25600-free_dim=200", "doc-dma-bw-trn1")
UNLIMITED_BYTES = 2.0**50
# In the order in which they are added to the bound; each is the difference of two predicted times, the last of published and predicted.
SHARES = {
    "rates": "calibrated instead of datasheet rates",
    "passes": "the busiest engine beyond the bound: Vector and Scalar passes, whole tiles, transposes, short DMA rows",
    "fill": "filling, round trips and dependences that the busiest engine sits out, with all engines side by side",
    "waits": "the fifth of the other compute engines that published kernels do not hide (overlap 0.8)",
    "traffic": "operands read again, spills of the function",
    "bytes": "more bytes in the published kernel (counted)",
    "transposes": "more transposes in the published kernel (counted)",
    "tiles": "small tiles of the published kernel",
    "launch": "launch, in figures taken on the host",
    "rest": "published, less all of the above",
}


def shares(row: Measurement, predictor: Predictor) -> dict[str, Any]:
    """Seconds of every share of one row, in the order of `SHARES`; together with the bound they are the published time."""
    prediction = predictor.predict(row)
    workload, chip = prediction.workload, predictor.chips[row.preset]
    program, launch_s = predictor.program(workload), predictor.launch_s(row)
    unlimited = chip.replace({"sbuf.size_bytes": UNLIMITED_BYTES})
    report, at_once = trn_jax.estimate(program, chip), trn_jax.estimate(program, unlimited, overlap=1.0)
    busy_s = {engine: used.busy_s for engine, used in at_once.engines.items()}
    busiest = max(busy_s, key=lambda engine: busy_s[engine])
    steps = {
        "rates": float(trn_jax.bound(program, at_calibrated_rates(chip))),
        "passes": busy_s[busiest],
        "fill": at_once.latency_s,
        "waits": float(trn_jax.latency(program, unlimited)),
        "traffic": prediction.function_s - launch_s,
    }
    if prediction.path == "counters":
        counted = {name: value for name, value in row.extra.items() if name != TRANSPOSED}
        steps["bytes"] = float(trn_jax.latency(with_counters(program, chip, counted), chip))
        steps["transposes"] = prediction.latency_s - launch_s
    elif prediction.path == "kernel":
        steps["tiles"] = prediction.latency_s - launch_s
    steps["launch"] = prediction.latency_s
    steps["rest"] = seconds_of(row, workload, chip, row.value)
    found, before = {}, prediction.bound_s
    for name in SHARES:
        after = steps.get(name, before)
        found[name], before = after - before, after
    return {
        "workload": workload.name,
        "bound_s": prediction.bound_s,
        "function_s": prediction.function_s,
        "predicted_s": prediction.latency_s,
        "published_s": steps["rest"],
        "shares_s": found,
        "busiest": busiest,
        "hbm_bytes": {"compulsory": report.hbm_bytes_compulsory, "function": report.hbm_bytes, "published": _counted_bytes(row)},
    }


def at_calibrated_rates(chip: Chip) -> Chip:
    """A chip whose datasheet says what is reached: `bound` counts measured shares of rates as 1."""
    rates = {
        "tensor.clock_hz": chip.tensor.clock_hz * chip.tensor.rate,
        "dma.bandwidth_bytes_per_s": chip.dma.bandwidth_bytes_per_s * chip.dma.rate,
    }
    return chip.replace({name: float(value) for name, value in rates.items()})


def _counted_bytes(row: Measurement) -> float | None:
    return float(row.extra[READ] + row.extra[WRITTEN]) if has_counters(row.extra) else None


def records(rows: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The predicted rows, those with the most headroom first."""
    predictor = Predictor()
    found = [_record(row, compared, predictor) for row, compared in zip(rows, compare(rows), strict=True) if compared.error is not None]
    return sorted(found, key=lambda record: -record["headroom"])


def _record(row: Measurement, compared: Compared, predictor: Predictor) -> dict[str, Any]:
    marks = {"threshold": compared.upper_bound, "doubtful": is_doubtful(compared), "tuned": bool(compared.tuned)}
    same = {"id": row.id, "chip": row.chip, "dtype": row.text("dtype"), "path": compared.path, "headroom": compared.headroom}
    return same | marks | shares(row, predictor)


def tables(found: Sequence[dict[str, Any]]) -> str:
    """headroom.md: by workload, then every row."""
    counted = [record for record in found if not record["threshold"] and not record["doubtful"]]
    lines = [
        "# Where published kernels lose time",
        "",
        "Made by `python experiments/e04_headroom/run.py`. Per cent of the published time.",
        "",
    ]
    lines += [f"- **{name}**: {meaning}" for name, meaning in SHARES.items()]
    for title, choose in (("Fastest published kernel of each function", True), ("All others", False)):
        lines += ["", f"## {title}, mean by workload", "", *_head("workload", "rows")]
        members: dict[str, list[dict[str, Any]]] = {}
        for record in counted:
            if record["tuned"] is choose:
                members.setdefault(record["workload"], []).append(record)
        lines += [_line(name, str(len(rows)), *_cells(rows)) for name, rows in sorted(members.items())]
    lines += ["", "## Every row, most headroom first", "", *_head("row", "headroom", "busiest", "MB")]
    for r in found:
        note = " (threshold)" if r["threshold"] else " (doubtful)" if r["doubtful"] else ""
        lines.append(_line(r["id"] + note, f"{r['headroom']:.2f}", r["busiest"], _megabytes(r["hbm_bytes"]), *_cells([r])))
    return "\n".join([*lines, "", "MB: over HBM, compulsory / of the function / of the published kernel where it is counted.", ""])


def _megabytes(moved: dict[str, float | None]) -> str:
    return " / ".join("-" if value is None else f"{value / MB:.3g}" for value in moved.values())


def _head(*first: str) -> Iterator[str]:
    columns = [*first, "bound", *SHARES]
    yield _line(*columns)
    yield "|" + "---|" * len(columns)


def _cells(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Bound and shares over published time, mean of the rows; a dot where it is nothing at all."""
    for part in ("bound", *SHARES):
        share = statistics.fmean((r["bound_s"] if part == "bound" else r["shares_s"][part]) / r["published_s"] for r in rows)
        yield f"{100 * share:.0f}" if abs(share) >= 0.005 else "·"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Splits every row and writes results.json and headroom.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one row of each path")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    start_s = time.perf_counter()
    rows = [row for row in read_measurements(TABLE) if row.kind != "collective" and (not options.smoke or row.id in SMOKE)]
    found = records(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps({"rows": found}, indent=1) + "\n")
    (options.out / "headroom.md").write_text(tables(found))
    print(f"{len(found)} rows in {time.perf_counter() - start_s:.0f} s")


if __name__ == "__main__":
    main()
