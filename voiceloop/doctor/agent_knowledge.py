"""Checks the documents of an agent file: readable folders, services that answer in time.

The code that opens a source for a server opens it here, so what passes here starts there. A search
changes nothing: the doctor sends each service one, with its keys.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Mapping

from voiceloop.agent import AgentConfig
from voiceloop.doctor.finding import Finding
from voiceloop.errors import BackendError, ConfigError
from voiceloop.knowledge.retriever import FolderRetriever
from voiceloop.knowledge.sources import SERVICE_MS, KnowledgeSource, open_retriever

PROBE_S = 5.0  # a service further away than this would be of no use to a caller
ASKED = "hello"
MEND = "mend the agent file, or set the variable"
START = "start the service, or mend its address or its key"


async def check_agent_knowledge(
    agent: AgentConfig, environment: Mapping[str, str]
) -> AsyncIterator[Finding]:
    """Each source. environment: where variables that the file names are looked up."""
    for source in agent.knowledge:
        yield await _check_source(source, agent.language, environment)


async def _check_source(
    source: KnowledgeSource, language: str, environment: Mapping[str, str]
) -> Finding:
    if source.folder is None:
        return await _check_service(source, language, environment)
    subject = f"knowledge {source.folder.name}"
    try:
        folder = await FolderRetriever.open([source.folder], language)
    except ConfigError as error:
        return Finding("problem", subject, _plain(error), "mend the folder, or its name")
    n_passages = folder.n_passages
    await folder.close()
    return Finding("ok", subject, f"{n_passages} passages in {source.folder}")


async def _check_service(
    source: KnowledgeSource, language: str, environment: Mapping[str, str]
) -> Finding:
    subject = f"knowledge {source.url}"  # as written: what a variable stands for may be a secret
    try:
        async with open_retriever([source], language, environment, 1000 * PROBE_S) as retriever:
            assert retriever is not None
            await retriever.search((ASKED,), 1)  # which connects
            took_ms = await _timed(retriever.search((ASKED,), 1))
    except ConfigError as error:
        return Finding("problem", subject, _plain(error), MEND)
    except BackendError as error:
        return Finding("problem", subject, error.message, START)
    found = f"answers in {took_ms:.0f} ms"
    if took_ms <= SERVICE_MS:
        return Finding("ok", subject, found)
    late = f"{found}, later than the {SERVICE_MS:.0f} ms that one search has"
    return Finding("note", subject, late, "what is late is left out of the turn: bring it nearer")


async def _timed(asked: Awaitable[object]) -> float:
    began_s = time.monotonic()
    await asked
    return 1000 * (time.monotonic() - began_s)


def _plain(error: ConfigError) -> str:
    return error.message.removeprefix("knowledge: ")
