"""Compares the search over orders of mixed servers with every order.

For a model and servers of several types: the step of the default plan, under some orders of the cluster file, and of
the best plan of each order, or of some random ones, with --keep-order. The exit code is 1 if a default plan is
slower than the best of all orders by more than --limit, or if two orders of the file differ by more than 0.5 %.

    python3 bench/device_orders.py --models gpt2,vgg19 --servers V100:2,P100:2,T4:2,V100:2
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import tempfile

from model_files import model_file

GB = 10**9
# Memory, bytes per second, FLOP/s in f32 and f16.
TYPES = {"H100": (80 * GB, 3350e9, 67e12, 990e12), "A100": (40 * GB, 1555e9, 19.5e12, 312e12),
         "V100": (32 * GB, 900e9, 15.7e12, 125e12), "P100": (16 * GB, 732e9, 10.6e12, 21e12),
         "T4": (16 * GB, 320e9, 8.1e12, 65e12)}
FILE_LIMIT = 0.005


def write_cluster(path, servers, slower=1):
    types = {name: {"memory_bytes": TYPES[name][0], "memory_bytes_per_second": TYPES[name][1] / slower,
                    "flops_per_second": {"f32": TYPES[name][2] / slower, "f16": TYPES[name][3] / slower},
                    "kernel_launch_seconds": 4e-6}
             for name in sorted(TYPES) if any(name == used for used, _ in servers)}
    rows = [{"device_type": name, "devices": count, **({"link": "inside"} if count > 1 else {})}
            for name, count in servers]
    with open(path, "w") as file:
        json.dump({"format": "automap-cluster-1", "name": "mixed", "device_types": types,
                   "links": {"inside": {"bytes_per_second": 12e9, "latency_seconds": 5e-6},
                             "network": {"bytes_per_second": 6e9, "latency_seconds": 20e-6}},
                   "servers": rows, "between_servers": "network"}, file)
    return path


def search(arguments, model, cluster, *options):
    command = [arguments.automap, "search", model_file(model), "--cluster", cluster, "-o", os.devnull, "--json",
               "--quiet"]
    done = subprocess.run(command + [*options, *arguments.options], capture_output=True, text=True)
    if done.returncode == 4:
        return float("inf")
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)["step_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--automap", default="build/automap")
    parser.add_argument("--models", default="gpt2,vgg19")
    parser.add_argument("--servers", default="V100:2,P100:2,T4:2,V100:2", help="TYPE:DEVICES of each server")
    parser.add_argument("--files", type=int, default=3, help="orders of the cluster file for the default search")
    parser.add_argument("--orders", type=int, default=0,
                        help="search only so many orders by --keep-order, drawn at random (0: all)")
    parser.add_argument("--slower", type=float, default=1,
                        help="factor of all seconds of computing, for models that launches would dominate")
    parser.add_argument("--limit", type=float, default=0.01, help="allowed excess over the best order")
    parser.add_argument("options", nargs="*", help="further options of search, after --")
    arguments = parser.parse_args()
    servers = [(name, int(count)) for name, count in (text.split(":") for text in arguments.servers.split(","))]
    orders = sorted(set(itertools.permutations(servers)))
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        cluster = os.path.join(folder, "mixed.json")
        for model in arguments.models.split(","):
            files = [tuple(servers)] + random.Random(1).sample(orders, min(len(orders), arguments.files - 1))
            found = [search(arguments, model, write_cluster(cluster, order, arguments.slower)) for order in files]
            tried = random.Random(2).sample(orders, min(len(orders), arguments.orders)) if arguments.orders else orders
            kept = {order: search(arguments, model, write_cluster(cluster, order, arguments.slower), "--keep-order")
                    for order in tried}
            best = min(kept, key=kept.get)
            spread, excess = max(found) / min(found) - 1, max(found) / kept[best] - 1
            failed |= spread > FILE_LIMIT or excess > arguments.limit
            print(f"{model:16} {len(tried):4} of {len(orders):4} orders: best {kept[best] * 1e3:10.3f} ms "
                  f"({' '.join(n for n, _ in best)}), "
                  f"worst {max(kept.values()) * 1e3:10.3f} ms; default {max(found) * 1e3:10.3f} ms "
                  f"({100 * excess:+.2f} %), "
                  f"files differ by {100 * spread:.2f} %", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
