"""What `import trn_jax` adds to `import jax`: the median of fresh processes.

python benchmarks/import_time.py [--json] [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

CODE = "import jax, jax.numpy, time; start = time.perf_counter(); import trn_jax; print(time.perf_counter() - start)"


def main() -> None:
    """Prints the seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", CODE]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True, env=environment) for _ in range(arguments.repeats + 1)]
    added = statistics.median(float(run.stdout) for run in runs[1:])
    print(json.dumps({"added_s": added}) if arguments.json else f"import trn_jax adds {added:.2f} s to import jax.")


if __name__ == "__main__":
    main()
