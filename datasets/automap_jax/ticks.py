"""The order of passes of a pipeline as a table of ticks, in each of which a stage runs one pass or none.

    table = Ticks(passes, parts)         # passes[stage] = [(kind, chunk, batch), ...], as a document has them
    table.rows["batch"][tick, stage]

A pass begins in the first tick after its inputs have arrived. What it sends arrives at the end of its tick. A frame is
the memory of one micro-batch on one part, from the first arrival to the last pass.
"""

import numpy as np

KINDS = "forward", "backward", "weights"


class Ticks:
    """A table of ticks.

    branches   the (kind, part) of passes; number 0 is no pass, branch k of the list is number k + 1
    frames     the number of frames that a stage needs, the most of all stages
    rows       {name: int32[ticks, stages]}: `branch`, `batch`, `frame` of the pass, `first` of its kind and part,
               and of arrivals `next`, `next_frame` (1 + the part that gets forward values, 0: none), `previous`,
               `previous_frame` (likewise with backward values)
    """

    def __init__(self, passes, parts):
        self.stages, self.parts = len(passes), parts
        found = self.in_order(passes)
        self.count = 1 + max(found.values())
        self.branches = sorted({key[:2] for key in found}, key=lambda key: (key[1], KINDS.index(key[0])))
        frames = self.find_frames(found)
        self.frames = 1 + max(frames.values())
        names = ("branch", "batch", "frame", "first", "next", "next_frame", "previous", "previous_frame")
        self.rows = {name: np.zeros((self.count, self.stages), np.int32) for name in names}
        known = set()
        for (kind, part, batch), tick in sorted(found.items(), key=lambda row: row[1]):
            at = tick, part % self.stages
            self.rows["branch"][at] = 1 + self.branches.index((kind, part))
            self.rows["batch"][at], self.rows["frame"][at] = batch, frames[part, batch]
            self.rows["first"][at] = (kind, part) not in known
            known.add((kind, part))
            other, name = {"forward": (part + 1, "next"), "backward": (part - 1, "previous")}.get(kind, (-1, ""))
            if 0 <= other < parts:
                arrival = tick, other % self.stages
                self.rows[name][arrival], self.rows[f"{name}_frame"][arrival] = 1 + other, frames[other, batch]

    def in_order(self, passes):
        """{(kind, part, batch): tick}."""
        found, at = {}, [0] * self.stages
        while any(k < len(rows) for k, rows in zip(at, passes, strict=True)):
            now = {}
            for stage, rows in enumerate(passes):
                if at[stage] == len(rows):
                    continue
                kind, chunk, batch = rows[at[stage]]
                part = chunk * self.stages + stage
                needs = {"forward": [("forward", part - 1, batch)] * (part > 0),
                         "backward": [("forward", part, batch)]
                         + [("backward", part + 1, batch)] * (part + 1 < self.parts),
                         "weights": [("backward", part, batch)]}[kind]
                if all(need in found for need in needs):
                    now[kind, part, batch] = max(map(found.get, found), default=-1) + 1
                    at[stage] += 1
            assert now, "the schedule waits for itself"
            found |= now
        return found

    def find_frames(self, found):
        """{(part, batch): frame}, the first free one of the stage at each arrival."""
        spans = {}
        for (_, part, batch), tick in found.items():
            begin = found["forward", part - 1, batch] + 1 if part else found["forward", 0, batch]
            spans[part, batch] = begin, max(tick, *spans.get((part, batch), [tick]))
        frames, ends = {}, [[] for _ in range(self.stages)]
        for (part, batch), (begin, end) in sorted(spans.items(), key=lambda row: row[1]):
            of_stage = ends[part % self.stages]
            free = next((k for k, last in enumerate(of_stage) if last < begin), len(of_stage))
            of_stage[free:free + 1] = [end]
            frames[part, batch] = free
        return frames
