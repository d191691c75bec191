"""Numbers for Prometheus, computed when they are asked for; a few series a job, none a rank."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from zrun.coordinator.fleet import Fleet
from zrun.core.states import JobState


class Metrics(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Nothing in advance: what there is follows from the jobs."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        yield from self._of_fleet()
        yield from self._of_jobs()

    def _of_fleet(self) -> Iterator[Metric]:
        fleet = self._fleet
        states = Counter(job.state.state for job in fleet.jobs.values())
        jobs = GaugeMetricFamily("zrun_jobs", "Jobs by state.", labels=["state"])
        for state in JobState:
            jobs.add_metric([state.value], states[state])
        yield jobs
        yield GaugeMetricFamily("zrun_agents_connected", "Agents with a connection.", value=len(fleet.links))
        yield CounterMetricFamily("zrun_events", "Events journaled, all lives of the coordinator.", value=fleet.events)
        yield GaugeMetricFamily(
            "zrun_journal_failing", "1 while the journal cannot be written.", value=1 if fleet.trouble else 0
        )

    def _of_jobs(self) -> Iterator[Metric]:
        step = GaugeMetricFamily("zrun_job_step", "Newest step verified on all ranks.", labels=["job"])
        attempt = GaugeMetricFamily("zrun_job_attempt", "Newest attempt.", labels=["job"])
        restarts = CounterMetricFamily("zrun_job_restarts", "Attempts after the first.", labels=["job"])
        incidents = CounterMetricFamily("zrun_job_incidents", "Incidents by class.", labels=["job", "class"])
        slow = GaugeMetricFamily(
            "zrun_job_straggling", "Part of the time in which ranks wait for a steadily slower one.", labels=["job"]
        )
        for job in self._fleet.jobs.values():
            found = job.watch.stragglers.now if not job.state.over else []
            slow.add_metric([job.id], max((one.lost for one in found), default=0.0))
            step.add_metric([job.id], job.state.best_step)
            attempt.add_metric([job.id], job.state.attempt)
            restarts.add_metric([job.id], job.state.restarts)
            for fault, count in Counter(i.fault.value for i in job.state.incidents).items():
                incidents.add_metric([job.id, fault], count)
        yield from (step, attempt, restarts, incidents, slow)
