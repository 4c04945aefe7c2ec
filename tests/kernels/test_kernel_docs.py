"""The code of docs/kernels.md runs."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import trn_jax as trn

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def test_the_first_kernel_and_the_product_do_what_the_page_says(capsys):
    first, product = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(first, names)
    assert "limited by" in capsys.readouterr().out
    np.testing.assert_array_equal(names["double"](jnp.ones((512, 64))), 2 * np.ones((512, 64)))

    @trn.kernel
    def multiplied(nc, lhsT, rhs):
        inside = {"nc": nc, "lhsT": lhsT, "rhs": rhs, "k": lhsT.shape[0], "jnp": jnp}
        exec(product, inside)
        out = nc.ndarray((128, 512), jnp.bfloat16, buffer="hbm")
        nc.store(out, inside["result"])
        return out

    lhsT, rhs = jax.random.normal(jax.random.key(0), (256, 128)), jax.random.normal(jax.random.key(1), (256, 512))
    np.testing.assert_allclose(multiplied(lhsT, rhs).astype(jnp.float32), lhsT.T @ rhs, rtol=2**-7, atol=1e-3)
