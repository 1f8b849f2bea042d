"""Steps that run from a recording: the first time as they are, then as one CUDA graph, without Python and without launch gaps."""

from collections.abc import Callable, Hashable

import torch


class Recorder:
    """Runs steps, and on a GPU records each the first time it runs. Away from a GPU, or switched off, every step just runs.

    A recorded step must read and write the same buffers each time, decide nothing on the host, and wait for nothing.
    """

    def __init__(self, device: torch.device, *, records: bool) -> None:
        self._records = records and device.type == "cuda"
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        # Recordings never run at the same time, so they may share the memory of what is neither read before nor kept after them.
        self._pool = torch.cuda.graph_pool_handle() if self._records else None

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Run the step that always has this key."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        # The first run is a real one, and warms up what must not be set up while recording; recording itself computes nothing.
        step()
        if self._records:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step()
            self._graphs[key] = graph

    def forget(self, owner: Hashable) -> None:
        """Let go of the recordings whose key begins with this owner."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if not (isinstance(key, tuple) and key[0] == owner)}
