"""How much of the processors a process gets beside others, where the kernel shares them by session.

Linux does outside of containers (``/proc/PID/autogroup``, see sched(7)): the sessions of a machine
share its processors, each with a nice value, which its user may raise and lower again; that of a
single process could only be raised. Elsewhere nothing changes.
"""

from __future__ import annotations

from pathlib import Path

SERVING, LOADING = 0, 10  # nice values: of ten parts a session that loads gets one beside another


class SessionWeights:
    """The nice values of a process's session, and of those that its children have begun."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._nice: dict[int, int] = {}  # as they were set, by process

    def set(self, pid: int, nice: int) -> bool:
        """Give all of them this one; returns whether they have it, as far as the kernel knows any.

        It is asked again where it has not: the kernel takes ten changes a second of all users.
        """
        n_left = sum(not self._set_one(one, nice) for one in self._family(pid))
        return n_left == 0

    def _family(self, pid: int) -> list[int]:
        found = [pid]
        for parent in found:
            for path in self._proc.glob(f"{parent}/task/*/children"):
                try:
                    found += map(int, path.read_text(encoding="ascii").split())
                except OSError:
                    continue  # it has ended meanwhile
        return found

    def _set_one(self, pid: int, nice: int) -> bool:
        if self._nice.get(pid, SERVING) == nice:
            return True
        try:
            with (self._proc / str(pid) / "autogroup").open("r+") as file:
                file.write(str(nice))
        except BlockingIOError:
            return False
        except OSError:
            return True  # no such thing here, or no such process any more
        self._nice[pid] = nice
        return True
