"""How long it takes to trace a large model's step, and to time it for the first time, in a process of its own each.

    python benchmarks/trace_llm.py          figures, one a line
    python benchmarks/trace_llm.py --json   one JSON object: llama_3_8b_train_s, scanned_s, first_latency_s, peak_rss_bytes, ...

`llama_3_8b_train_s` is trace() of a whole train step of Llama-3-8B with 32 layers written out (forward, backward, AdamW), `scanned_s`
with the layers as one scan; making the function and its shapes is not in them. `first_latency_s` is the first call of latency() with the
written-out program, compilation included; `peak_rss_bytes` the most memory that process had before it, JAX included.
`llama_405b_decode_s` is trace() and the first latency() together for one decode step of Llama-3.1-405B, 126 layers written out, after
8192 tokens.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

WORKLOADS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "unrolled": ("llama-3-8b", "train", {"tokens": 2048}),
    "scanned": ("llama-3-8b", "train", {"tokens": 2048, "scan_layers": True}),
    "decode": ("llama-3.1-405b", "decode", {"tokens": 8192}),
}


def measure(workload: str) -> dict[str, float]:
    import trn_jax
    from trn_jax.models import reference

    name, mode, options = WORKLOADS[workload]
    function, args = reference(name, mode, **options)
    start_s = time.perf_counter()
    program = trn_jax.trace(function, *args)
    traced_s = time.perf_counter() - start_s
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    start_s = time.perf_counter()
    latency_s = float(trn_jax.latency(program, trn_jax.load_chip("trainium2")))
    first_s = time.perf_counter() - start_s
    return {"trace_s": traced_s, "first_latency_s": first_s, "peak_rss_bytes": peak_bytes, "rows": len(program), "latency_s": latency_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--workload", choices=WORKLOADS, help="measure one of them in this process")
    options = parser.parse_args()
    if options.workload:
        print(json.dumps(measure(options.workload)))
        return
    found = {}
    for workload in WORKLOADS:
        command = [sys.executable, __file__, "--workload", workload]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[workload] = json.loads(output.splitlines()[-1])
    unrolled, scanned, decode = (found[workload] for workload in WORKLOADS)
    results = {
        "llama_3_8b_train_s": unrolled["trace_s"],
        "scanned_s": scanned["trace_s"],
        "first_latency_s": unrolled["first_latency_s"],
        "peak_rss_bytes": unrolled["peak_rss_bytes"],
        "rows": unrolled["rows"],
        "scanned_rows": scanned["rows"],
        "scanned_first_latency_s": scanned["first_latency_s"],
        "predicted_latency_s": unrolled["latency_s"],
        "scanned_predicted_latency_s": scanned["latency_s"],
        "llama_405b_decode_s": decode["trace_s"] + decode["first_latency_s"],
        "llama_405b_decode_rows": decode["rows"],
    }
    print(json.dumps(results) if options.json else "\n".join(f"{name:<28} {value:,.4g}" for name, value in results.items()))


if __name__ == "__main__":
    main()
