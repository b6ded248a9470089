"""vLLM's gauges over several device services."""

from __future__ import annotations

from vllm.v1.metrics.stats import SchedulerStats


class SchedulerGauges:
    """What each device service said last of this frontend's requests.

    Running and waiting requests are summed. KV usage is the mean, as vLLM shows it
    for several engines: where one is full and another empty, half is in use.
    """

    def __init__(self) -> None:
        self._newest: dict[str, SchedulerStats] = {}

    def merge(self, device: str, stats: SchedulerStats) -> SchedulerStats:
        """Note what one says; its prefix counters are deltas, and stay as they are."""
        self._newest[device] = stats
        return stats if len(self._newest) == 1 else self._sum(stats)

    def idle(self, device: str) -> SchedulerStats:
        """Nothing of ours runs or waits there any more."""
        known = self._newest.get(device)
        usage = known.kv_cache_usage if known is not None else 0.0
        self._newest[device] = SchedulerStats(kv_cache_usage=usage)
        return self._sum(SchedulerStats())

    def forget(self, device: str) -> SchedulerStats | None:
        """It is lost, and what it said; None if it had said nothing."""
        if self._newest.pop(device, None) is None:
            return None
        return self._sum(SchedulerStats())

    def _sum(self, deltas: SchedulerStats) -> SchedulerStats:
        newest = self._newest.values()
        return SchedulerStats(
            num_running_reqs=sum(stats.num_running_reqs for stats in newest),
            num_waiting_reqs=sum(stats.num_waiting_reqs for stats in newest),
            kv_cache_usage=sum(stats.kv_cache_usage for stats in newest)
            / max(1, len(newest)),
            prefix_cache_stats=deltas.prefix_cache_stats,
        )
