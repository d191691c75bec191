"""Looks out for the coordinator and for the other nodes of each attempt, and says which jobs have to be ended.

Asks and carries; whether silence means that the coordinator is away or that this node is cut off says node_reach.py.
"""

import math
import time
from collections.abc import Iterable
from typing import Final

from structlog.typing import FilteringBoundLogger

from zrun.agent.node_reach import DOUBT, Reach, Reading
from zrun.agent.node_state import NodeState
from zrun.agent.peers import Company, PeerPort
from zrun.wire.report import Doing

ASK: Final = 0.1
"""Parts of a lease between two questions to the peers while the coordinator is silent."""
ASK_ANYHOW_S: Final = 5.0
"""Between two questions while all is well: a port that is blocked should be known before it matters."""
DEAF_S: Final = 15.0
BEAT: Final = 0.2
"""Parts of a lease between two reports of a node that has peers."""
LEAVE_LEASES: Final = 10.0
LEAVE_S: Final = 30.0
"""A node that was cut off and hears nobody for the longer of the two has nothing to wait for."""
AT_WORK: Final = frozenset({Doing.SETUP, Doing.STARTING, Doing.RUNNING, Doing.FAILED})


class Lookout:
    """Of one agent."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self.reach = Reach(time.monotonic())
        self.port = PeerPort(lambda: self.reach.quiet_s, self._answered)
        self.address = ""
        self._lease_s = 3.0
        self._asked = -math.inf
        self._seen: dict[tuple[str, int, str], float] = {}
        self._companies: list[Company] = []
        self._away = self._was_cut_off = False

    async def open(self, address: str) -> None:
        """This node's own end of a new connection to the coordinator; the first one is kept for the peers."""
        if self.address:
            return
        try:
            await self.port.open(address)
        except OSError as error:
            self._log.warning("no port for other nodes' agents", address=address, error=str(error))
        self.address = address

    @property
    def beat_s(self) -> float | None:
        """How often a report is due; None: as ever."""
        return max(0.1, BEAT * self._lease_s) if self._companies else None

    def turn(self, states: Iterable[NodeState], lease_s: float) -> dict[str, str]:
        """Job -> why this node is cut off from what it needs for it; called at each turn of the agent's loop."""
        self._lease_s = lease_s
        self.reach.tick(time.monotonic())
        with_peers = [(state.doing, Company(state.job, plan)) for state in states
                      if (plan := state.record.plan) is not None and plan.nnodes > 1]  # fmt: skip
        self._companies = [company for doing, company in with_peers if doing in AT_WORK]
        self.port.serve([company for doing, company in with_peers if doing in AT_WORK | {Doing.FINISHED}])
        self._ask()
        cut_off: dict[str, str] = {}
        away = ""
        for company in self._companies:
            judged = self.reach.judge(company.job, company.others, lease_s)
            if judged.reading is Reading.CUT_OFF:
                cut_off[company.job] = judged.why
            elif judged.reading is Reading.COORDINATOR_AWAY:
                away = judged.why
        if away and not self._away:
            self._log.warning("training goes on", why=away)
        self._away = bool(away)
        self._was_cut_off = bool(cut_off) or (self._was_cut_off and self.reach.quiet_s >= DOUBT * lease_s)
        return cut_off

    @property
    def forsaken(self) -> bool:
        """It was cut off, and nobody has been heard since for so long that nobody will come."""
        return self._was_cut_off and self.reach.quiet_s >= max(LEAVE_S, LEAVE_LEASES * self._lease_s)

    def _ask(self) -> None:
        reach, lease = self.reach, self._lease_s
        often = ASK * lease if reach.quiet_s >= DOUBT * lease else ASK_ANYHOW_S
        if reach.lived - self._asked < often:
            return
        self._asked = reach.lived
        here = {(company.job, company.plan.attempt) for company in self._companies}
        self._seen = {seen: at for seen, at in self._seen.items() if seen[:2] in here}
        for company in self._companies:
            self.port.ask(company)
            self._warn_of_the_deaf(company)

    def _warn_of_the_deaf(self, company: Company) -> None:
        """Once for each silence of a node."""
        for node in company.others:
            seen = (company.job, company.plan.attempt, node)
            if self.reach.lived - self._seen.setdefault(seen, self.reach.lived) > DEAF_S:
                self._seen[seen] = math.inf
                why = "if the coordinator goes away, this node will take itself for cut off"
                self._log.warning("another node's agent does not answer", job=company.job, other=node, why=why)

    def _answered(self, job: str, node: str, age_s: float) -> None:
        company = next((c for c in self._companies if c.job == job), None)
        if company is not None:
            self._seen[job, company.plan.attempt, node] = self.reach.lived
            self.reach.answered(job, node, age_s, self._lease_s)
