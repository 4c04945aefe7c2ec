"""Operands of products that come from HBM: a transpose in front of a product is how its operand lies there, never a copy in HBM.

An array that only products read can be kept in HBM in the layout in which they read it, so `x @ w.T` is `einsum("mk,nk->mn", x, w)`.
A table that a gather reads row by row cannot: rows are what its descriptors fetch. A product over its columns, as that of tied
embeddings, takes it through a DMA transpose, tile by tile on its way into SBUF.

    only products read w                   load                        at the copy rate
    a gather reads rows of w               dma_transpose               at TRANSPOSE_SHARE of it

Basis: documented (NKI: nc_matmul contracts over partitions; DMA transposes on the way from HBM to SBUF); assumed (that one copy of the
weights serves products in both layouts, see decision 17). The Tensor Engine could transpose instead, for a pass over the
operand there and one to evacuate it; DMA is the one fixed plan, so that no chip chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trn_jax.graph.instruction import Instruction, Work
from trn_jax.timing.stream import Block, Datum, Items, Step, Stream, walk


def read_operands_as_they_lie(stream: Stream) -> Stream:
    """The stream without transposes of arrays in HBM that only products read, and with those that a gathered table needs."""
    steps = [item for item in walk(stream.items) if isinstance(item, Step)]
    gathered = {stream.origin(step.reads[0]) for step in steps if step.instruction.kind == "gather" and step.reads}
    transposes = [step for step in steps if _transposes_hbm(stream, step)]
    if not gathered and not transposes:
        return stream
    only_products = stream.only_read_by(_product_reads) if transposes else set()
    sources = {step.writes[0]: step.reads[0] for step in transposes if step.writes[0] in only_products}
    reader = _Reader(stream, gathered, sources, list(stream.data))
    return replace(stream, items=reader.items(stream.items), data=tuple(reader.data))


def _transposes_hbm(stream: Stream, step: Step) -> bool:
    i = step.instruction
    return i.kind == "dma_transpose" and len(step.reads) == 1 and stream.data[step.reads[0]].place in ("hbm", "slice")


def _product_reads(item: Step | Block) -> tuple[int, ...]:
    return item.reads if isinstance(item, Step) and item.instruction.kind == "nc_matmul" else ()


@dataclass
class _Reader:
    stream: Stream
    gathered: set[int]
    sources: dict[int, int]  # transposed array that only products read -> array in HBM
    data: list[Datum] = field(default_factory=list)

    def items(self, items: Items) -> Items:
        result: list[Step | Block] = []
        for item in items:
            if isinstance(item, Block):
                item = replace(item, items=self.items(item.items))
            elif item.instruction.kind == "dma_transpose" and item.writes[0] in self.sources:
                continue
            elif item.instruction.kind == "nc_matmul":
                item = self.product(item, result)
            result.append(item)
        return tuple(result)

    def product(self, step: Step, before: list[Step | Block]) -> Step:
        """The product reading its operands from HBM, after the DMA transposes that it needs (added to `before`)."""
        reads = list(step.reads)
        for position, read in enumerate(reads):
            source = self.sources.get(read, read)
            over_columns = position < 2 and step.columns[position] != (read in self.sources)
            bound = self.stream.origin(source) in self.gathered and self.data[source].place in ("hbm", "slice")
            reads[position] = self.transposed(step, source, before) if bound and over_columns else source
        return step if tuple(reads) == step.reads else replace(step, reads=tuple(dict.fromkeys(reads)))

    def transposed(self, step: Step, source: int, before: list[Step | Block]) -> int:
        """An operand whose rows become columns on the way in; it never waits in SBUF as a whole."""
        size_bytes, row_bytes, _ = self.data[source]
        self.data.append(Datum(size_bytes, row_bytes, "tiles"))
        target = len(self.data) - 1
        work = Work(bytes=size_bytes, row_bytes=row_bytes)
        before.append(
            Step(
                instruction=Instruction(engine="dma", kind="dma_transpose", function="transpose", work=work, write_formats=("",)),
                reads=(source,),
                writes=(target,),
                after=step.after,
                rows=step.rows,
                functions=("transpose",),
                sources=step.sources,
                scopes=step.scopes,
            )
        )
        return target
