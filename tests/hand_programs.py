"""Programs built by hand, a slow and obvious schedule to compare with, and random programs for laws."""

import dataclasses

import numpy as np
from hypothesis import strategies as st

from trn_jax import Instruction, Work
from trn_jax.engines import KINDS, Static
from trn_jax.timing.program import Loop, Program, Row, Structure

KIB, MIB = 1024.0, 1024.0**2


def instruction(engine, kind, function="", operand_formats=(), narrow=False, **work):
    return Instruction(engine=engine, kind=kind, function=function, work=Work(**work), operand_formats=operand_formats, narrow=narrow)


def matmul(m, k, n, fmt="bf16", batch=1.0):
    return instruction("tensor", "nc_matmul", "dot_general", (fmt, fmt), batch=batch, m=m, k=k, n=n, elements=m * n)


def vector(elements, kind="tensor_tensor", operands=2.0, function="add", narrow=False):
    return instruction("vector", kind, function, narrow=narrow, elements=elements, operands=operands)


def scalar(elements, function="exp"):
    return instruction("scalar", "activation", function, elements=elements)


def table_load(name="exp_and_log"):
    return instruction("scalar", "act_table_load", name)


def dma(size_bytes, row_bytes=4096.0):
    return instruction("dma", "dma_copy", "load", bytes=size_bytes, row_bytes=row_bytes)


def gpsimd(elements):
    return instruction("gpsimd", "iota", "iota", elements=elements)


def all_reduce(size_bytes, ranks=8.0):
    return instruction("collective", "all_reduce", "psum", bytes=size_bytes, ranks=ranks)


def program(rows, loops=(), reuse_bytes=None, trips=None):
    """A Program of (instruction or None, waits) pairs; None closes a loop. `loops`: (begin, end, carried); `trips`: {end: trips}."""
    reuse_bytes, trips = reuse_bytes or {}, trips or {}
    lines = tuple(
        Row(instruction=record, waits=tuple(waits), label=record.kind if record else "loop", source="hand.py:1 (f)", scope="")
        for record, waits in rows
    )
    work = [record.work if record else Work() for record, _ in rows]
    table = {field.name: np.array([getattr(w, field.name) for w in work], float) for field in dataclasses.fields(Work)}
    table["reuse_bytes"] = np.array([reuse_bytes.get(row, np.inf) for row in range(len(rows))], float)
    table["reuse_slope"] = np.ones(len(rows))
    table["hbm"] = np.array([float(record is not None and record.engine == "dma") for record, _ in rows])
    table["trips"] = np.array([float(trips.get(row, 1)) for row in range(len(rows))])
    return Program(
        structure=Structure(
            engines=tuple(record.engine if record else "loop" for record, _ in rows),
            kinds=tuple(record.kind if record else "loop" for record, _ in rows),
            narrow=tuple(bool(record and record.narrow) for record, _ in rows),
            waits=tuple(tuple(waits) for _, waits in rows),
            loops=tuple(Loop(begin=begin, end=end, carried=tuple(carried)) for begin, end, carried in loops),
            rows=lines,
            functions=tuple(record.function if record else "" for record, _ in rows),
            operand_formats=tuple(record.operand_formats if record else () for record, _ in rows),
        ),
        table=table,
    )


def costs(program, chip, smoothing=0.0):
    """[(occupancy, latency, tiles)] of every row, one row at a time."""
    result = []
    for row, line in enumerate(program.structure.rows):
        if line.instruction is None:
            result.append((0.0, 0.0, 1.0))
            continue
        record = line.instruction
        work = _Sizes({name: np.float64(column[row]) for name, column in program.table.items()})
        static = Static(narrow=record.narrow, function=record.function, operand_formats=record.operand_formats)
        cost = KINDS[record.engine][record.kind].cost(work, chip, smoothing, static)
        result.append(tuple(float(x) for x in cost))
    return result


class _Sizes:
    def __init__(self, columns):
        self.__dict__.update(columns)


def slow_schedule(program, cost, lane=lambda engine: engine):
    """Ends of all rows of a program without loops, by the definition in Python floats; everything concurrent."""
    ends, visible, free = [], [], {}
    for (occupancy, latency, tiles), engine, waits in zip(cost, program.structure.engines, program.structure.waits, strict=True):
        gap, first = latency - occupancy, occupancy / tiles
        begin = max([(ends if tiles <= 1 else visible)[j] for j in waits] + [0.0]) + gap
        begin = max(begin, free.get(lane(engine), 0.0))
        end = max([begin + occupancy] + [ends[j] + gap + first for j in waits])
        ends.append(end)
        visible.append(begin + first)
        free[lane(engine)] = end
    return ends


def unrolled(rows, loop, count):
    """Pairs of a program with one loop (the last row of which closes it), written out `count` times."""
    begin, end, carried = loop
    out = list(rows[:begin])
    previous = {}
    for iteration in range(count):
        offset = len(out) - begin
        for row in range(begin, end):
            record, waits = rows[row]
            now = [wait + offset if wait >= begin else wait for wait in waits]
            if iteration:
                now += [previous[maker] for readers, maker in carried if maker >= 0 and row in readers]
            out.append((record, tuple(dict.fromkeys(now))))
        previous = {row: row + offset for row in range(begin, end)}
    for record, waits in rows[end + 1 :]:
        shift = len(out) - (end + 1)
        out.append((record, tuple(previous[end - 1] if wait == end else wait if wait < begin else wait + shift for wait in waits)))
    return out


SIZES = st.sampled_from([1.0, 100.0, 128.0, 512.0, 640.0, 1000.0, 4096.0])


@st.composite
def instructions(draw):
    kind = draw(st.sampled_from(["matmul", "vector", "narrow", "reduce", "copy", "scalar", "table", "dma", "gpsimd", "all_reduce"]))
    a, b, c = draw(SIZES), draw(SIZES), draw(SIZES)
    return {
        "matmul": lambda: matmul(a, b, c, draw(st.sampled_from(["bf16", "fp32", "fp8_e4m3"]))),
        "vector": lambda: vector(a * b),
        "narrow": lambda: vector(a * b, narrow=True),
        "reduce": lambda: vector(a * b, "tensor_reduce", 1.0),
        "copy": lambda: vector(a * b, "tensor_copy", 1.0, "evacuate"),
        "scalar": lambda: scalar(a * b),
        "table": table_load,
        "dma": lambda: dma(4 * a * b, 4 * b),
        "gpsimd": lambda: gpsimd(a * b / 64),
        "all_reduce": lambda: all_reduce(4 * a * b),
    }[kind]()


@st.composite
def programs(draw, max_rows=10, loops=True):
    """Random programs, half of them with a loop."""
    count = draw(st.integers(1, max_rows))
    rows = [
        (draw(instructions()), tuple(sorted(draw(st.sets(st.integers(max(0, i - 5), i - 1), max_size=3)))) if i else ())
        for i in range(count)
    ]
    reuse = {i: draw(st.sampled_from([1.0, 30.0, 60.0])) * MIB for i in range(count) if rows[i][0].engine == "dma" and draw(st.booleans())}
    if not (loops and count >= 3 and draw(st.booleans())):
        return program(rows, reuse_bytes=reuse)
    begin = draw(st.integers(0, count - 2))
    closing = count
    readers, maker = draw(st.integers(begin, count - 1)), draw(st.integers(begin, count - 1))
    rows = [*rows, (None, (count - 1,)), (vector(4096.0), (closing,))]
    trips = float(draw(st.integers(9, 60)))
    return program(rows, [(begin, closing, [((readers,), maker)])], reuse, {closing: trips})
