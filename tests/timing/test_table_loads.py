"""Loads of activation tables: where they stand, what they cost, and that passes never add any."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import scalar, vector
from hypothesis import given, settings
from hypothesis import strategies as st
from traced_programs import shape, table_loads

import trn_jax as trn
from trn_jax.engines.activation_sets import NO_TABLE, SETS, set_of
from trn_jax.graph.rules.elementwise import ACTIVATIONS
from trn_jax.kernels.arithmetic import ACTIVATIONS as KERNEL_ACTIVATIONS
from trn_jax.report.slices import engine_slices
from trn_jax.timing.passes import DEFAULT
from trn_jax.timing.passes.balance import SWITCH
from trn_jax.timing.program import Loop, Row
from trn_jax.timing.table_loads import Lines, with_table_loads

CHIP = trn.load_chip("trainium2")
X = shape(512, 512)
EXP, GELU, SIN = "exp_and_log", "gelu", "trigonometric"


def test_every_function_has_one_table_or_needs_none():
    functions = [function for members in SETS.values() for function in members.functions]
    assert len(functions) == len(set(functions))
    assert NO_TABLE.isdisjoint(functions)
    assert {*ACTIVATIONS, *KERNEL_ACTIVATIONS} <= NO_TABLE.union(functions)
    assert all(members.basis.split(":")[0] in ("documented", "assumed") for members in SETS.values())


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("exp", EXP),
        ("log", EXP),
        ("multiply+exp", EXP),
        ("evacuate+tanh+cast", GELU),
        ("exp+add", EXP),
        ("multiply+add", ""),
        ("relu", ""),
        ("", ""),
        ("my_function", "my_function"),
    ],
)
def test_a_fused_instruction_needs_the_table_of_its_function(function, expected):
    assert set_of(function) == expected


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: x * 2.0 + 1.0, []),
        (lambda x: jnp.exp(x), [EXP]),
        (lambda x: jnp.log(jnp.exp(x)), [EXP]),
        (lambda x: jnp.exp(jnp.sin(jnp.exp(x))), [EXP, SIN, EXP]),
        (lambda x: jax.nn.softmax(jnp.tanh(x)), [GELU, EXP]),
    ],
)
def test_a_load_stands_before_the_first_function_of_another_set(f, expected):
    assert table_loads(trn.trace(f, X)) == expected


def scan(step, length=20):
    return lambda x: jax.lax.scan(lambda x, _: (step(x), None), x, None, length=length)[0]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda x: jnp.exp(x), [(EXP, 1)]),
        (lambda x: jnp.exp(jnp.sin(x)), [(SIN, 20), (EXP, 20)]),
        (lambda x: jnp.exp(jnp.sin(jnp.exp(x))), [(EXP, 1), (SIN, 20), (EXP, 20)]),  # each iteration begins with what it ended with
    ],
)
def test_a_loop_loads_one_set_before_it_and_alternating_sets_in_every_iteration(step, expected):
    rows = trn.trace(scan(step), X).to_table()
    assert [(row["label"].split()[1], row["repeats"]) for row in rows if row["kind"] == "act_table_load"] == expected


def test_a_loop_takes_as_long_as_written_out_up_to_one_load():
    step = lambda x: jnp.exp(jnp.sin(x))

    def written_out(x):
        for _ in range(9):
            x = step(x)
        return x

    looped, unrolled = (trn.trace(f, X) for f in (scan(step, 9), written_out))
    for table_load_s in (1e-6, 1e-4):
        chip = CHIP.replace({"scalar.table_load_s": table_load_s})
        assert trn.latency(looped, chip, overlap=1.0) == pytest.approx(float(trn.latency(unrolled, chip, overlap=1.0)), rel=0.03)


FUNCTIONS = ("exp", "tanh", "sin", "copy", "")  # "" is a row of the Vector Engine


@st.composite
def bodies(draw, depth=0):
    """Functions in order; a list among them is a loop."""
    one = st.sampled_from(FUNCTIONS)
    return draw(st.lists(one if depth == 2 else one | bodies(depth + 1), min_size=1, max_size=4))


def lines_of(body):
    """Rows of a body; each waits for the one before, and a loop carries its last row to its first."""
    rows, loops = [], []

    def add(record):
        waits = (len(rows) - 1,) if rows else ()
        rows.append(Row(instruction=record, waits=waits, label=f"{len(rows)}", source="", scope=""))

    def write(body):
        for item in body:
            if isinstance(item, list):
                begin = len(rows)
                write(item)
                add(None)
                loops.append(Loop(begin=begin, end=len(rows) - 1, carried=(((begin,), len(rows) - 2),)))
            else:
                add(scalar(1000.0, item) if item else vector(1000.0))

    write(body)
    return Lines(rows, [(np.inf, 1.0, 0.0, 1.0)] * len(rows), loops, [(0, 1.0)] * len(rows), [])


def run(lines):
    """Instructions in the order in which they run, loops three times."""
    ends = sorted(lines.loops, key=lambda loop: (loop.begin, -loop.end))

    def span(begin, end, inside):
        row = begin
        while row < end:
            if inside and inside[0].begin == row:
                loop, body = inside[0], [inner for inner in inside[1:] if inner.end < inside[0].end]
                for _ in range(3):
                    yield from span(loop.begin, loop.end, body)
                row, inside = loop.end + 1, inside[1 + len(body) :]
            else:
                yield lines.rows[row].instruction
                row += 1

    yield from span(0, len(lines.rows), ends)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(bodies())
def test_in_any_nest_of_loops_every_function_finds_its_table_and_little_is_loaded_twice(body):
    lines = lines_of(body)
    result = with_table_loads(lines)
    loaded, loads, switches, before = "", 0, 0, ""
    for record in run(result):
        if record.kind == "act_table_load":
            loaded, loads = record.function, loads + 1
        elif record.engine == "scalar" and (needed := set_of(record.function)):
            assert loaded == needed
            switches, before = switches + (needed != before), needed
    entered = sum(3 ** sum(outer.begin <= loop.begin and loop.end < outer.end for outer in lines.loops) for loop in lines.loops)
    assert switches <= loads <= switches + entered  # at most one too many each time that a loop begins


@settings(deadline=None, max_examples=100, derandomize=True)
@given(bodies())
def test_rows_keep_their_waits_and_loops_under_new_numbers(body):
    lines = lines_of(body)
    result = with_table_loads(lines)
    old = lambda rows: [result.rows[row].label for row in rows]
    kept = [row for row in result.rows if row.instruction is None or row.instruction.kind != "act_table_load"]
    assert [(row.label, old(row.waits)) for row in kept] == [(row.label, [str(wait) for wait in row.waits]) for row in lines.rows]
    for before, after in zip(lines.loops, result.loops, strict=True):
        assert old([after.end]) == [str(before.end)]
        inside = [row.label for row in result.rows[after.begin : after.end] if row in kept]
        assert inside == [str(row) for row in range(before.begin, before.end)]
        (((reader,), maker),) = after.carried
        assert old([reader, maker]) == [str(before.begin), str(before.end - 1)]
    assert len(result.rows) == len(result.extra) == len(result.groups)


def test_rows_that_take_turns_with_a_function_find_its_table_loaded():
    copy, function, other = scalar(1e5, "copy"), scalar(1e5, "exp"), scalar(1e5, "sin")
    rows = [Row(instruction=i, waits=(), label=i.function, source="", scope="") for i in (vector(1e5), copy, function, copy, other)]
    lines = Lines(rows, [(np.inf, 1.0, 0.0, 1.0)] * 5, [], [(0, 8.0)] * 5, [])
    assert [row.label for row in with_table_loads(lines).rows] == [
        "add",
        "act_table_load exp_and_log",
        "copy",
        "exp",
        "act_table_load trigonometric",
        "copy",
        "sin",
    ]


@trn.kernel
def softmax_then_gelu(nc, x):
    out = nc.ndarray((128, 512), jnp.float32, buffer="hbm")
    for i in nc.affine_range(40):
        tile = nc.load(x[:, i * 512 : (i + 1) * 512])
        powers, total = nc.activation_reduce("exp", tile)
        nc.store(out, nc.activation("gelu", powers, scale=nc.reciprocal(total)))
    return out


def test_kernels_load_tables_too_on_the_scalar_engine_s_lane():
    program = trn.trace(softmax_then_gelu, shape(128, 40 * 512))
    issued = program.structure.issued
    loads = [row for row in program.to_table() if row["kind"] == "act_table_load"]
    assert [row["label"].split()[1] for row in loads] == [EXP, GELU] * (len(loads) // 2)
    assert sum(row["repeats"] for row in loads) == 80
    assert all(issued.lanes[row["row"]] == "scalar" for row in loads)
    assert "test_table_loads.py" in loads[0]["source"]
    free = CHIP.replace({"scalar.table_load_s": 0.0})
    assert trn.latency(program, CHIP) > trn.latency(program, free)


LAW_PROGRAMS = {
    "alternating": (lambda x: jnp.exp(jnp.sin(jnp.exp(x))), [X]),
    "loop": (scan(lambda x: jnp.exp(jnp.sin(x))), [X]),
    "kernel": (softmax_then_gelu, [shape(128, 40 * 512)]),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "alternating")) for name in LAW_PROGRAMS])
def test_the_time_of_a_load_counts_and_has_its_derivative(name):
    f, arguments = LAW_PROGRAMS[name]
    program = trn.trace(f, *arguments)
    with jax.enable_x64(True):
        seconds = jnp.asarray([0.0, 0.5, 1.0, 2.0, 10.0]) * CHIP.scalar.table_load_s
        times = lambda s: trn.latency(program, CHIP.replace({"scalar.table_load_s": s}))
        batch = times(seconds)
        assert np.all(np.diff(batch) > 0)
        np.testing.assert_allclose(jax.vmap(times)(seconds), batch, rtol=1e-12)
        np.testing.assert_allclose(jax.jit(times)(seconds), batch, rtol=1e-12)
        for smoothing in (0.0, 0.05):
            time = lambda s, smoothing=smoothing: trn.latency(program, CHIP.replace({"scalar.table_load_s": s}), smoothing=smoothing)
            s, step = CHIP.scalar.table_load_s, 1e-10
            slope = float(jax.grad(time)(jnp.asarray(s)))
            assert slope > 0
            assert slope == pytest.approx(float(time(s + step) - time(s - step)) / (2 * step), rel=1e-4)
    for smoothing in (0.0, 0.05):
        assert trn.elasticity(program, CHIP, smoothing=smoothing).time_power_sum == pytest.approx(1, rel=1e-9)
    assert trn.bound(program, CHIP) == trn.bound(program, CHIP.replace({"scalar.table_load_s": 1.0}))


def test_the_first_load_hides_behind_the_first_data():
    program = trn.trace(lambda x: jnp.exp(x), X)
    assert trn.latency(program, CHIP, overlap=1.0) == trn.latency(program, CHIP.replace({"scalar.table_load_s": 0.0}), overlap=1.0)


def test_reports_and_traces_show_the_load(tmp_path):
    program = trn.trace(lambda x: jnp.exp(jnp.sin(x)), X)
    report = trn.estimate(program, CHIP)
    slices = [item for item in engine_slices(program, report.schedule) if item.kind == "act_table_load"]
    assert [item.name for item in slices] == ["act_table_load trigonometric", "act_table_load exp_and_log"]
    for item in slices:
        assert item.engine == "scalar"
        assert item.duration_s == pytest.approx(CHIP.scalar.table_load_s)
    assert any(operation.label == "act_table_load exp_and_log" for operation in report.top)
    assert '"name": "act_table_load exp_and_log", "cat": "act_table_load"' in report.save_trace(tmp_path / "trace.json").read_text()


def cast_behind_another_table(x):
    y = jnp.exp(x)
    z = jnp.sin(x)
    return y.astype(jnp.bfloat16), z, jnp.exp(z)


def test_fusing_a_cast_does_not_move_a_function_past_another_table():
    before = table_loads(trn.trace(cast_behind_another_table, X, passes=()))
    program = trn.trace(cast_behind_another_table, X, passes=("elementwise",))
    assert table_loads(program) == before == [EXP, SIN, EXP]


def casts_in_a_row(x):
    y, z = jnp.exp(x), jnp.exp(x + 1.0)
    u = jnp.sin(x)
    return y.astype(jnp.bfloat16), z.astype(jnp.bfloat16), u


def layer(x, w, gain):
    x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * jnp.broadcast_to(gain, x.shape)
    return x + jax.nn.gelu(jax.nn.softmax(x @ w) @ w)


@pytest.mark.parametrize(
    ("f", "arguments"),
    [
        (cast_behind_another_table, [X]),
        (casts_in_a_row, [X]),
        (layer, [X, shape(512, 512), shape(1, 512)]),
        (jax.grad(lambda *a: layer(*a).sum(), argnums=(0, 1, 2)), [X, shape(512, 512), shape(1, 512)]),
    ],
)
def test_passes_never_add_a_load(f, arguments):
    full = trn.trace(f, *arguments, passes=())
    most = len(table_loads(full))
    for names in (*itertools.combinations(DEFAULT, 1), *(DEFAULT[:count] for count in range(2, len(DEFAULT) + 1))):
        assert len(table_loads(full.with_passes(names))) <= most


@pytest.mark.parametrize(("second", "moved"), [(jnp.exp, 1), (jnp.sin, 0)])
def test_balance_counts_a_switch_as_work_of_the_scalar_engine(second, moved):
    """Three affine steps of 1024 columns beside two functions: moving one of them no longer pays if a load comes between those."""
    program = trn.trace(lambda x, y: (jnp.exp(x), second(y), x * 2.0, x * 3.0, y * 4.0), shape(128, 1024), shape(128, 1024))
    assert SWITCH == pytest.approx(1.28e-6 * 1.2e9 * 128)
    assert sum(i.engine == "scalar" and i.function == "multiply" for i in program.instructions) == moved
