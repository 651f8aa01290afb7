"""Cluster files of mixed servers."""

import json

# memory, bytes and FLOPs a second, dollars an hour
TYPES = {
    "V100": (16 * 10**9, 900e9, 15.7e12, 3.06),
    "P100": (16 * 10**9, 732e9, 10.6e12, 1.46),
    "T4": (16 * 10**9, 320e9, 8.1e12, 0.53),
}


def write_cluster(path, servers, *, slower=1.0, memory=None, rate=2e8, latency=2e-5, inside=None, prices=False):
    """Writes the cluster of servers [(type, devices), ...] and returns its path.

    `slower` divides the rates of devices, so that small models take time; `rate` and `latency` are those of the
    link in and between servers, `inside` the rate in servers; `memory` replaces the bytes of types.
    """
    types = {
        name: {
            "memory_bytes": (memory or {}).get(name, size),
            "memory_bytes_per_second": bandwidth / slower,
            "flops_per_second": {"f32": flops / slower},
            "kernel_launch_seconds": 4e-6,
            **({"price_per_hour": price} if prices else {}),
        }
        for name, (size, bandwidth, flops, price) in TYPES.items()
        if any(name == used for used, _ in servers)
    }
    path.write_text(json.dumps({
        "format": "automap-cluster-1",
        "name": path.stem,
        "device_types": types,
        "links": {"link": {"bytes_per_second": rate, "latency_seconds": latency},
                  **({"inside": {"bytes_per_second": inside, "latency_seconds": latency}} if inside else {})},
        "servers": [{"device_type": name, "devices": count, "link": "inside" if inside else "link"}
                    for name, count in servers],
        "between_servers": "link",
    }))
    return path
