"""Graph to Stream: calls inlined, views followed to the data they show, short loops unrolled, the heavier branch taken.

A static slice of an array is data of its own (a region), so that one layer of stacked weights is not the whole stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trn_jax.graph.chains import chains, is_elementwise
from trn_jax.graph.graph import Branch, Call, Constant, Graph, Node, Op, Scan, Value, While
from trn_jax.graph.instruction import PARTITIONS, Instruction
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules import lower
from trn_jax.timing.groups import locality
from trn_jax.timing.linear_scan import is_linear_recurrence, scan_instruction
from trn_jax.timing.refs import LITERAL, NOTHING, Ref, broadcast, contiguous_elements, has_equal_rows, undoes
from trn_jax.timing.row_bound import contracts_columns, row_side, transpose_steps
from trn_jax.timing.stream import Block, Carry, Datum, Sliced, Stacked, Step, Stream, renamed, rough_work
from trn_jax.timing.trip_counts import TripCounts

UNROLLED_TRIPS = 8  # loops up to this long are unrolled exactly
LONGEST_ROW_BYTES = 65536.0


def flatten(graph: Graph, numerics: Numerics, trip_count: int | Mapping[str, int] | None) -> Stream:
    """The stream of a traced function.

    Args:
        graph: From `trn_jax._compat`.
        numerics: Formats of matmul operands and writes; mesh axes already in scope.
        trip_count: Iterations of while loops: one number for all, or by a part of their source line or scope.

    Returns:
        Steps and long loops in program order, with nothing dropped yet.

    Raises:
        NoRuleError: For a primitive without a rule.
        ProgramError: For a while loop without a trip count.
    """
    flattener = _Flattener(numerics, TripCounts(trip_count))
    inputs = [Ref(flattener.datum(value, "hbm")) for value in graph.inputs]
    results = flattener.graph(graph, inputs)
    outputs: dict[int, float] = {}
    copied_bytes = 0.0
    for value, ref in zip(graph.outputs, results, strict=True):
        for datum in flattener.pieces(ref):
            outputs[datum] = max(outputs.get(datum, 0.0), flattener.data[datum].size_bytes * ref.copies)
        if ref.datum == NOTHING:
            copied_bytes += value.size_bytes
    flattener.trip_counts.check_all_used()
    return Stream(
        items=tuple(flattener.items), data=tuple(flattener.data), regions=flattener.regions, outputs=outputs, copied_bytes=copied_bytes
    )


@dataclass
class _Flattener:
    numerics: Numerics
    trip_counts: TripCounts
    data: list[Datum] = field(default_factory=list)
    items: list[Step | Block] = field(default_factory=list)
    regions: dict[int, int] = field(default_factory=dict)  # region -> data it was cut from
    cuts: dict[tuple, int] = field(default_factory=dict)  # what was cut -> region, so that equal slices are one
    assembled: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)  # stack of an unrolled loop -> its parts
    constants: dict[Value, int] = field(default_factory=dict)
    lowered: dict[tuple[Op, Numerics], tuple[Instruction, ...]] = field(default_factory=dict)
    chained: dict[int, dict[int, int]] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)  # keeps the graphs alive whose id is a key
    row_bound: set[int] = field(default_factory=set)  # data that lie with their rows on partitions
    transposes: dict[int, tuple[Ref, Op]] = field(default_factory=dict)  # transposed data -> what of, and how
    next_chain: int = 0
    after: tuple[int, ...] = ()
    scope: str = ""

    def datum(self, value: Value, place: str, contiguous: float = 0.0) -> int:
        """New data; of a part of an array, `contiguous` is how many of its elements lie side by side there."""
        item_bytes = value.size_bytes / max(1, value.size)
        if 0 < contiguous < value.size:
            row_bytes = contiguous * item_bytes
        else:  # a whole array has as long rows as its tiles on all partitions
            row_bytes = max(value.size_bytes / PARTITIONS, (value.shape[-1] if value.shape else 1) * item_bytes)
        self.data.append(Datum(float(value.size_bytes), max(1.0, min(LONGEST_ROW_BYTES, row_bytes)), place))
        return len(self.data) - 1

    def pieces(self, ref: Ref) -> tuple[int, ...]:
        """The data behind a value: nothing for a literal, the parts of what an unrolled loop stacked, else itself."""
        if ref.datum == NOTHING:
            return ()
        if ref.datum in self.assembled:
            return tuple(dict.fromkeys(datum for part in self.assembled[ref.datum] for datum in part))
        return (ref.datum,)

    def all_pieces(self, refs: Sequence[Ref]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(datum for ref in refs for datum in self.pieces(ref)))

    def graph(self, graph: Graph, inputs: Sequence[Ref]) -> list[Ref]:
        """Appends the nodes of a graph, given what its inputs are; returns what its outputs are."""
        environment: dict[Value, Ref] = dict(zip(graph.inputs, inputs, strict=True))
        for value, _ in graph.constants:
            if value not in self.constants:
                self.constants[value] = self.datum(value, "hbm")
            environment[value] = Ref(self.constants[value])
        if id(graph) not in self.chained:
            self.chained[id(graph)] = chains(graph)
            self.graphs.append(graph)
        chain_of, first_chain = self.chained[id(graph)], self.next_chain
        self.next_chain += len(graph.nodes)

        def read(value: Value) -> Ref:
            return LITERAL if isinstance(value, Constant) else environment[value]

        for node in graph.nodes:
            refs = [read(value) for value in node.inputs]
            if isinstance(node, Op):
                chain = chain_of.get(node.index, -1)
                outputs = self.op(node, refs, first_chain + chain if chain >= 0 else -1)
            else:
                outputs = self.compound(node, refs)
            environment.update(zip(node.outputs, outputs, strict=True))
        return [read(value) for value in graph.outputs]

    def op(self, op: Op, refs: Sequence[Ref], chain: int) -> list[Ref]:
        key = (op, self.numerics)
        instructions = self.lowered.get(key)
        if instructions is None:
            instructions = self.lowered[key] = lower(op, self.numerics)
        if not instructions:
            return self.view(op, refs)
        if op.name == "transpose" and refs[0].datum in self.transposes:
            source, earlier = self.transposes[refs[0].datum]
            if undoes(op, earlier):
                return [source]
        largest = max((*op.inputs, *op.outputs), key=lambda value: value.size)
        rows = largest.size / max(1, largest.shape[-1] if largest.shape else 1)
        streamable, columns = -1, (False, False)
        if instructions[-1].function == "evacuate":
            refs, streamable, columns = self.transposed(op, instructions[-2], refs, rows)
        reads = self.all_pieces(refs)
        tensors = sum(not ref.constant_rows for ref, value in zip(refs, op.inputs, strict=True) if value.size > 1)
        if op.name.startswith(("scatter", "dynamic_update_slice")) and self.pieces(refs[0]) == (refs[0].datum,):
            results = [refs[0].datum]  # written in place
        else:
            results = [self.datum(value, "sbuf") for value in op.outputs]
        elementwise = is_elementwise(op)
        if elementwise and any(self.binds_rows(ref, value, op.outputs[0]) for ref, value in zip(refs, op.inputs, strict=True)):
            self.row_bound.update(results)
        equal_rows = any(has_equal_rows(ref, value, largest) for ref, value in zip(refs, op.inputs, strict=True))
        previous: tuple[int, ...] = ()
        for position, instruction in enumerate(instructions):
            last = position == len(instructions) - 1
            sources = (*reads, *previous) if not previous or instruction.kind == "nc_matmul" else previous
            writes = tuple(results)
            if not last:
                between = op.outputs[0] if op.outputs else op.inputs[0]
                writes = (self.datum(between, "psum" if instruction.engine == "tensor" else "sbuf"),)
                if instruction.kind == "quantize_mx":  # elements and scales of both operands
                    self.data[-1] = self.data[-1]._replace(size_bytes=instruction.work.bytes)
            self.items.append(
                Step(
                    instruction=instruction,
                    reads=sources,
                    writes=writes,
                    after=self.after,
                    chain=chain,
                    elementwise=elementwise,
                    tensors=tensors,
                    equal_rows=equal_rows,
                    rows=rows,
                    streamable=streamable if instruction.kind == "nc_matmul" else -1,
                    columns=columns if instruction.kind == "nc_matmul" else (False, False),
                    locality=locality(op, instruction),
                    pinned=not op.outputs or "callback" in op.name,
                    functions=(instruction.function or op.name,),
                    sources=(op.source,),
                    scopes=(self.within(op.scope),),
                )
            )
            previous = writes
        if op.name == "transpose":
            self.transposes[results[0]] = refs[0], op
        return [Ref(datum) for datum in results]

    def binds_rows(self, ref: Ref, value: Value, result: Value) -> bool:
        """Whether an operand forces rows onto partitions: one computed number per row, or data that are so already."""
        if ref.datum == NOTHING or value.size <= 1:
            return False
        repeats = ref.constant_rows or value.shape[-1:] == (1,) != result.shape[-1:]
        return ref.datum in self.row_bound or (repeats and self.data[ref.datum].place == "sbuf")

    def transposed(self, op: Op, multiply: Instruction, refs: Sequence[Ref], rows: float) -> tuple[list[Ref], int, tuple[bool, bool]]:
        """Operands of a product, transposed where they have to be; which of these it can work through row by row; `Step.columns`."""
        refs, side = list(refs), row_side(op, multiply, rows)
        columns = (contracts_columns(op, multiply, 0), contracts_columns(op, multiply, 1))
        bound = [ref.datum in self.row_bound and over for ref, over in zip(refs, columns, strict=False)]
        for position, value in enumerate(op.inputs[:2]):
            if not bound[position]:
                continue
            results = self.datum(value, "psum"), self.datum(value, "sbuf")
            self.items += transpose_steps(multiply, op, position, refs[position].datum, results, self.after, self.within(op.scope))
            refs[position] = Ref(results[1])
        return refs, refs[side].datum if side is not None and bound[side] else -1, columns

    def view(self, op: Op, refs: Sequence[Ref]) -> list[Ref]:
        """A view shows its first operand, or operand by operand if there are as many results."""
        if not refs:
            return [LITERAL for _ in op.outputs]
        pairwise = len(op.outputs) == len(refs)
        sources = range(len(refs)) if pairwise else [0] * len(op.outputs)
        return [self.shown(op, position, refs[source], op.inputs[source], op.outputs[position]) for position, source in enumerate(sources)]

    def shown(self, op: Op, position: int, ref: Ref, source: Value, result: Value) -> Ref:
        if ref.datum == NOTHING:
            return LITERAL
        if result.size < source.size:
            return Ref(self.cut(ref, (source.shape, op.name, str(dict(op.params)), position), result, contiguous_elements(source, result)))
        if op.name == "broadcast_in_dim":
            return broadcast(op, ref)
        return ref if result.shape == source.shape else ref._replace(constant_rows=False, equal_rows=False)

    def cut(self, ref: Ref, key: tuple, result: Value, contiguous: float = 0.0) -> int:
        """The region that a static slice shows; a stack that an unrolled loop made is read whole."""
        if ref.datum in self.assembled:
            return ref.datum
        full_key = (ref.datum, *key)
        if full_key not in self.cuts:
            self.cuts[full_key] = region = self.datum(result, self.data[ref.datum].place, contiguous)
            self.regions[region] = self.regions.get(ref.datum, ref.datum)
        return self.cuts[full_key]

    def compound(self, node: Node, refs: Sequence[Ref]) -> list[Ref]:
        """A call, loop or branch; names of scopes inside it are relative to its own."""
        outside, self.scope = self.scope, self.within(node.scope)
        outputs = self.inside(node, refs)
        self.scope = outside
        return outputs

    def within(self, scope: str) -> str:
        return "/".join(filter(None, (self.scope, scope)))

    def inside(self, node: Node, refs: Sequence[Ref]) -> list[Ref]:
        match node:
            case Call():
                return self.call(node, refs)
            case Scan():
                return self.scan(node, refs)
            case While():
                return self.while_loop(node, refs)
            case Branch():
                return self.branch(node, refs)
        raise AssertionError(f"unknown node {type(node).__name__}")

    def call(self, node: Call, refs: Sequence[Ref]) -> list[Ref]:
        outside = self.numerics
        if node.ranks:  # each works on its part
            refs = [
                Ref(self.cut(ref, ("shard", inner.shape, index), inner)) if ref.datum != NOTHING and inner.size < outer.size else ref
                for index, (ref, outer, inner) in enumerate(zip(refs, node.inputs, node.body.inputs, strict=True))
            ]
        self.numerics = outside.entering(node)
        outputs = self.graph(node.body, refs)
        self.numerics = outside
        return outputs

    def scan(self, node: Scan, refs: Sequence[Ref]) -> list[Ref]:
        split, stop = node.num_consts, node.num_consts + node.num_carry
        consts, carry, scanned = refs[:split], list(refs[split:stop]), refs[stop:]
        values = node.body.inputs[stop:]
        stacked_values = node.outputs[node.num_carry :]
        if node.length > UNROLLED_TRIPS and is_linear_recurrence(node):
            return self.recurrence(node, refs)
        if node.length > UNROLLED_TRIPS:
            return self.block(node, node.body, consts, carry, node.length, scanned=scanned)
        parts: list[list[tuple[int, ...]]] = [[() for _ in range(node.length)] for _ in stacked_values]
        for iteration in reversed(range(node.length)) if node.reverse else range(node.length):
            slices = [self.iteration_slice(ref, value, node.length, iteration) for ref, value in zip(scanned, values, strict=True)]
            outputs = self.graph(node.body, [*consts, *carry, *slices])
            carry = outputs[: node.num_carry]
            for stack, ref in zip(parts, outputs[node.num_carry :], strict=True):
                stack[iteration] = self.pieces(ref)
        return [*carry, *(self.assemble(value, stack) for value, stack in zip(stacked_values, parts, strict=True))]

    def recurrence(self, node: Scan, refs: Sequence[Ref]) -> list[Ref]:
        """All iterations in one instruction; states are rows, as the time of a tensor_tensor_scan runs along them."""
        results = [self.datum(value, "sbuf") for value in node.outputs]
        instruction = scan_instruction(node)
        self.items.append(
            Step(
                instruction=instruction,
                reads=self.all_pieces(refs),
                writes=tuple(results),
                after=self.after,
                tensors=2,
                rows=instruction.work.rows,
                locality="rows",
                functions=(instruction.function,),
                sources=(node.source,),
                scopes=(self.within(node.scope),),
            )
        )
        return [Ref(datum) for datum in results]

    def iteration_slice(self, ref: Ref, value: Value, length: int, iteration: int) -> Ref:
        parts = self.assembled.get(ref.datum)
        if parts is not None and len(parts) == length:
            return self.assemble(value, [parts[iteration]])
        return LITERAL if ref.datum == NOTHING else Ref(self.cut(ref, ("iteration", length, iteration), value))

    def assemble(self, value: Value, parts: list[tuple[int, ...]]) -> Ref:
        """Data that is nothing but other data side by side."""
        if len(parts) == 1 and len(parts[0]) == 1:
            return Ref(parts[0][0])
        if not any(parts):
            return LITERAL
        datum = self.datum(value, "sbuf")
        self.assembled[datum] = tuple(parts)
        return Ref(datum)

    def while_loop(self, node: While, refs: Sequence[Ref]) -> list[Ref]:
        split, stop = node.condition_num_consts, node.condition_num_consts + node.body_num_consts
        condition_consts, consts, carry = refs[:split], refs[split:stop], list(refs[stop:])
        trips = self.trip_counts.of(node)
        if trips > UNROLLED_TRIPS:
            return self.block(node, node.body, consts, carry, trips, condition=(node.condition, condition_consts))
        outside = self.after
        for _ in range(trips):
            (go_on,) = self.graph(node.condition, [*condition_consts, *carry])
            self.after = (*outside, *self.pieces(go_on))
            carry = self.graph(node.body, [*consts, *carry])
            self.after = outside
        return carry

    def block(
        self,
        node: Scan | While,
        body: Graph,
        consts: Sequence[Ref],
        carry: Sequence[Ref],
        trips: int,
        scanned: Sequence[Ref] = (),
        condition: tuple[Graph, Sequence[Ref]] | None = None,
    ) -> list[Ref]:
        """One iteration as a `Block`."""
        carried_values = body.inputs[len(consts) : len(consts) + len(carry)]
        sliced_values = body.inputs[len(consts) + len(carry) :]
        inside = [self.datum(value, "sbuf") for value in carried_values]
        parts = [Ref(self.datum(v, "slice")) if r.datum != NOTHING else LITERAL for r, v in zip(scanned, sliced_values, strict=True)]
        outer_items, outer_after = self.items, self.after
        self.items, go_on = [], ()
        state = [Ref(datum) for datum in inside]
        if condition is not None:
            graph, condition_consts = condition
            go_on = self.all_pieces(self.graph(graph, [*condition_consts, *state]))
            self.after = (*outer_after, *go_on)
        outputs = self.graph(body, [*consts, *state, *parts])
        items, self.items, self.after = tuple(self.items), outer_items, outer_after
        results = [Ref(self.datum(value, "sbuf")) for value in node.outputs]
        following, stacked = outputs[: len(carry)], outputs[len(carry) :]
        carries, kept = [], {}
        for position, (before, datum, ref) in enumerate(zip(carry, inside, following, strict=True)):
            if ref.datum == datum and before.copies == 1 and self.pieces(before) == (before.datum,):
                kept[datum], results[position] = before.datum, before  # never replaced, at most changed in place
            else:
                carries.append(Carry(self.pieces(before), datum, self.pieces(ref), results[position].datum))
        self.regions.update({region: kept[origin] for region, origin in self.regions.items() if origin in kept})
        block = (
            Block(
                items=items,
                trips=trips,
                carries=tuple(carries),
                sliced=tuple(Sliced(self.pieces(ref), part.datum) for ref, part in zip(scanned, parts, strict=True) if part is not LITERAL),
                stacked=tuple(Stacked(self.pieces(ref), whole.datum) for ref, whole in zip(stacked, results[len(carry) :], strict=True)),
                condition=go_on,
                source=node.source,
                scope=self.scope,
            ),
        )
        self.items.extend(renamed(block, kept))
        return results

    def branch(self, node: Branch, refs: Sequence[Ref]) -> list[Ref]:
        """The branch with the most work, after the outcome of the condition."""
        outer_items, outer_after = self.items, self.after
        self.after = (*outer_after, *self.pieces(refs[0]))
        alternatives: list[tuple[float, list[Step | Block], list[Ref]]] = []
        for body in node.branches:
            self.items = []
            outputs = self.graph(body, refs[1:])
            alternatives.append((sum(map(rough_work, self.items)), self.items, outputs))
        self.items, self.after = outer_items, outer_after
        _, items, outputs = max(alternatives, key=lambda alternative: alternative[0])
        self.items.extend(items)
        return outputs
