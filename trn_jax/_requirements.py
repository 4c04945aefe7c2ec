"""Checked before anything else is imported: an ml_dtypes without Trainium's formats breaks JAX itself, whose message names neither."""

import ml_dtypes

for _format in ("float8_e4m3", "float8_e3m4"):
    if not hasattr(ml_dtypes, _format):
        raise ImportError(
            f"trn_jax needs ml_dtypes >= 0.5 for {_format}, but {ml_dtypes.__version__} is installed. Upgrade it: pip install -U ml_dtypes."
        )
