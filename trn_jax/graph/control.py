"""Control flow as the walker uses it: JAX's own, or one that carries more along (`trn_jax.observe`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from trn_jax.graph.graph import Branch, Node


class Control:
    """lax.scan, while_loop, switch and platform_dependent; `node` is the loop or branch that is being rebuilt."""

    def scan(self, node: Node, body: Callable[..., Any], carry: Any, xs: Any, **how: Any) -> tuple[Any, Any]:
        """lax.scan."""
        return lax.scan(body, carry, xs, **how)

    def while_loop(self, node: Node, condition: Callable[..., Any], body: Callable[..., Any], carry: Any) -> Any:
        """lax.while_loop."""
        return lax.while_loop(condition, body, carry)

    def branch(self, node: Branch, index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
        """lax.switch by `index`, or lax.platform_dependent where the node names platforms."""
        if node.platforms is None:
            return lax.switch(index, branches, *operands)
        pairs = list(zip(node.platforms, branches, strict=True))
        default = next((branch for names, branch in pairs if names is None), None)
        return lax.platform_dependent(*operands, default=default, **{name: branch for names, branch in pairs for name in names or ()})


JAX_CONTROL = Control()
