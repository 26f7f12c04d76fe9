"""Mutants against checks: ``python -m tests.conformance.matrix``.

For each row of the fault table: the check that names it, and which other checks notice it too.
"""

from __future__ import annotations

import asyncio

from clients.conformance.check import Check, Result
from clients.conformance.suite import ALL, run_check
from tests.conformance.mutants import Mutant
from tests.conformance.row_mutants import ROW_MUTANTS
from tests.conformance.server import conforming, target_of

AT_ONCE = 8
CHECKS = tuple(check for check in ALL if check.topic != "speech")


async def main() -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def tried(url: str, mutant: Mutant, check: Check) -> Result:
        async with free:
            return await run_check(check, target_of(f"{url}?mutant={mutant.name}", timeout_s=2.0))

    async with conforming(ROW_MUTANTS) as url:
        for mutant in ROW_MUTANTS:
            results = await asyncio.gather(*(tried(url, mutant, check) for check in CHECKS))
            failed = [r.check.name for r in results if r.outcome == "fail"]
            named = "fails" if mutant.check in failed else "PASSES"
            others = [name for name in failed if name != mutant.check]
            shown = ", ".join(others[:6]) + (f" and {len(others) - 6} more" if others[6:] else "")
            print(
                f"{mutant.row:46} {mutant.name:26} {mutant.check:26} {named}; also: {shown or '-'}"
            )


if __name__ == "__main__":
    asyncio.run(main())
