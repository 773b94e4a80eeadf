"""Microseconds per record of each detector: python benchmarks/detectors_cost.py [--records N]"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from monitor_core.detectors import REGISTRY

ALLOWED_US = 20.0  # per record, all detectors together (design 5)
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    count = parser.parse_args().records
    rng = np.random.default_rng(0)
    columns = {
        "loss": (1 + 0.1 * rng.normal(size=count)).tolist(),
        "grad_norm": rng.lognormal(size=count).tolist(),
        "step_time": rng.lognormal(-3, 0.3, count).tolist(),
        "overflow": [0.0] * count,
        "input_signature": [0.0] * count,
    }
    total = 0.0
    for name, build in REGISTRY.items():
        rounds = []
        for _ in range(ROUNDS):
            detector = build()
            rows = list(zip(*(columns[metric] for metric in detector.inputs), strict=True))
            begun = time.perf_counter()
            for step, row in enumerate(rows):
                detector.update(step, row)
            rounds.append((time.perf_counter() - begun) / count * 1e6)
        total += statistics.median(rounds)
        print(f"{name:28}{statistics.median(rounds):8.2f} us per record")
    print(f"{'all':28}{total:8.2f} us per record, {total / ALLOWED_US:.2f} of what is allowed")


if __name__ == "__main__":
    main()
