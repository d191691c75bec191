"""What the supervisor may signal: exactly the processes that it, or the one before it, began."""

import os
import select
import signal
import subprocess

from zrun.cli import children


def test_a_later_process_with_the_pid_of_an_earlier_one_gets_no_signal() -> None:
    with subprocess.Popen(["sleep", "300"]) as other:
        started = children.started_at(other.pid)
        children.send(other.pid, signal.SIGKILL, started - 1)
        assert children.started_at(other.pid) == started
        assert other.poll() is None
        children.send(other.pid, signal.SIGKILL, started)
        assert other.wait(10) == -signal.SIGKILL


def test_a_session_is_ended_also_after_its_leader_but_not_one_that_got_the_same_number() -> None:
    script = "sleep 300 >/dev/null & echo $!; exec sleep 301 >/dev/null"
    with subprocess.Popen(["bash", "-c", script], start_new_session=True, stdout=subprocess.PIPE) as leader:
        assert leader.stdout is not None
        member = os.pidfd_open(int(leader.stdout.readline()))
        started = children.started_at(leader.pid)
        children.kill_session(leader.pid, started - 1)
        assert not select.select([member], [], [], 0)[0]
        assert leader.poll() is None
        leader.kill()
        leader.wait(10)
        children.kill_session(leader.pid, started)
        assert select.select([member], [], [], 10)[0], "the member of the session lives on"
        os.close(member)
