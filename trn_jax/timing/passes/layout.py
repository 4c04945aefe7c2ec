"""Layouts around matrix products: a transpose next to one is an access pattern of the product, not a move.

transpose(a @ b) = b.T @ a.T      the operands change places, stationary for moving
transpose(a) @ b                  the operand is read along its other axis, as the product's own rule assumes for all operands
scan(transpose(a))                JAX scans the leading axis, the hardware the last one

Basis: documented (NKI: nc_matmul contracts over partitions, and either operand may be the stationary one); assumed that operands
can be made in the layout in which they are read, as kernels arrange where they can.
"""

from __future__ import annotations

from dataclasses import replace

from trn_jax.timing.linear_scan import RECURRENCE
from trn_jax.timing.stream import Block, Items, Step, Stream


def fold_transposes(stream: Stream) -> Stream:
    """Drops DMA transposes of a product nobody else reads, and those that only products read (from HBM: see `operand_layout`)."""
    readers = stream.readers()
    renamed: dict[int, int] = {}
    items = _items(stream, stream.items, readers, stream.only_read_by(_product_reads), renamed)
    return replace(stream, items=items)


def _product_reads(item: Step | Block) -> tuple[int, ...]:
    if isinstance(item, Block):
        return ()
    return item.reads if item.instruction.kind == "nc_matmul" or item.instruction.function == RECURRENCE else ()


def _items(stream: Stream, items: Items, readers: dict[int, int], only_products: set[int], renamed: dict[int, int]) -> Items:
    result: list[Step | Block | None] = []
    evacuated: dict[int, int] = {}  # product -> position of the step that takes it out of PSUM
    for item in items:
        if isinstance(item, Block):
            item = replace(item, items=_items(stream, item.items, readers, only_products, renamed))
        else:
            if not renamed.keys().isdisjoint(item.reads):
                item = replace(item, reads=tuple(dict.fromkeys(renamed.get(read, read) for read in item.reads)))
            if item.instruction.kind == "dma_transpose" and len(item.reads) == 1 and stream.data[item.reads[0]].place == "sbuf":
                (source,), (target,) = item.reads, item.writes
                evacuation = result[evacuated[source]] if source in evacuated else None
                if isinstance(evacuation, Step) and readers[source] == 1 and source not in stream.outputs:
                    result[evacuated.pop(source)] = replace(evacuation, writes=(*evacuation.writes[:-1], target))
                    continue
                if target in only_products:
                    renamed[target] = source
                    continue
            if item.instruction.function in ("evacuate", RECURRENCE):
                evacuated[item.writes[-1]] = len(result)
        result.append(item)
    return tuple(item for item in result if item is not None)
