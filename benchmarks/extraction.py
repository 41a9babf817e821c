"""Images a second from images in memory to shards on disk, against the bare network.

    python benchmarks/extraction.py [--images 50000] [--batch-size 256]

ResNet-50 with random weights on random images, on a GPU where there is one. *Bare* is the
ceiling: the same network on one batch that lies on the device, again and again, nothing copied
and nothing kept. *Extraction* is what ``trustsets paper extract`` does after decoding: bytes go
to the device, are normalised and run there, and logits and features come back and are written
with checksums. Decoding is left out; it takes as many cores as the card can feed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from trustsets.extras.batches import Batch
from trustsets.extras.forward import Runner, Tap, evaluating, run_ahead
from trustsets.extras.shards import BatchStore
from trustsets.paper.images.models import ARCHITECTURES, FEATURE_LAYER, Network

SIZE = 224
CLASSES = 1000
WARM_UP = 10
# Different batches in memory; more would only fill it.
DISTINCT = 4


def make_batches(size: int, pin: bool) -> list[Tensor]:
    """Random images as bytes, in memory that a GPU can fetch by itself."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(DISTINCT):
        batch = torch.randint(256, (size, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
        batches.append(batch.pin_memory() if pin else batch)
    return batches


def synchronize(place: torch.device) -> None:
    """Wait for a GPU to be done."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def bare_speed(
    network: Network, batch: Tensor, count: int, place: torch.device, half: bool
) -> float:
    """Images a second of the network alone, on inputs that are ready on the device."""
    inputs = torch.randn(batch.shape, device=place)
    if place.type == "cuda":
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode(), torch.autocast(place.type, torch.float16, enabled=half):
        for _ in range(WARM_UP if place.type == "cuda" else 1):
            network.body(inputs)
        synchronize(place)
        start = time.perf_counter()
        for _ in range(count):
            network.body(inputs)
        synchronize(place)
    return count * len(batch) / (time.perf_counter() - start)


def extraction_speed(
    network: Network, batches: list[Tensor], count: int, place: torch.device, half: bool
) -> float:
    """Images a second from bytes in memory to shards on disk."""
    labels = np.zeros(len(batches[0]), dtype=np.int64)

    def stream(n: int) -> Iterator[Batch]:
        rows = np.arange(len(labels))
        return (Batch(batches[i % DISTINCT], labels, rows + i * len(rows)) for i in range(n))

    chosen = network.get_submodule(FEATURE_LAYER)
    with tempfile.TemporaryDirectory() as folder, Tap(network, chosen) as tap:
        runner = Runner(network, tap, place, half, keep_predicted=True)
        for batch in stream(2):
            runner.run(batch)
        store = BatchStore(folder, {}, keep=False)
        start = time.perf_counter()
        run_ahead(runner, stream(count), store)
        store.finish()
        return count * len(labels) / (time.perf_counter() - start)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, help="default: 50,000 on a GPU, 256 on a CPU")
    parser.add_argument("--batch-size", type=int, help="default: 256 on a GPU, 32 on a CPU")
    arguments = parser.parse_args()
    gpu = torch.cuda.is_available()
    size = arguments.batch_size or (256 if gpu else 32)
    count = max(1, (arguments.images or (50_000 if gpu else 256)) // size)
    network = ARCHITECTURES["imagenet"].build(CLASSES)
    batches = make_batches(size, gpu)
    name = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}; torch {torch.__version__}; {count * size:,} images in batches of {size}")
    print("| precision | bare network, images/s | extraction, images/s | share |")
    print("|---|---|---|---|")
    with evaluating(network, "cuda" if gpu else "cpu") as place:
        network.prefer_layout_of(place)
        for half in (True, False) if gpu else (False,):
            bare = bare_speed(network, batches[0], count, place, half)
            ours = extraction_speed(network, batches, count, place, half)
            word = "mixed" if half else "single"
            print(f"| {word} | {bare:,.0f} | {ours:,.0f} | {ours / bare:.0%} |")


if __name__ == "__main__":
    main()
