"""How an agent is asked for its plans: while the world waits, or while it goes on."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from carla_bridge.agents.agent import Agent, Answer, View
from wamdiff2_core.errors import InfrastructureError, UserError

LOG = logging.getLogger(__name__)


class AgentError(RuntimeError):
    """An agent raised instead of answering."""


@dataclass(frozen=True)
class Asked:
    """A moment that an agent was shown, and what came of it: a plan, or why there is none."""

    view: View
    answer: Answer | None
    silence: str


class Asking(Protocol):
    """One question at a time, and its answer."""

    @property
    def busy(self) -> bool:
        """Whether the last question has not been answered, or its answer not been taken."""

    def ask(self, view: View) -> None:
        """Show the agent a moment."""

    def take(self) -> Asked | None:
        """The answer, once; None while there is none.

        Raises:
            AgentError: the agent has raised.
            UserError, InfrastructureError: as the agent has raised them.
        """

    def close(self) -> None:
        """Wait until the agent is not asked any more."""


class AskingInTurn:
    """Asks while the world stands still."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._asked: Asked | None = None

    @property
    def busy(self) -> bool:
        """See `Asking`."""
        return self._asked is not None

    def ask(self, view: View) -> None:
        """See `Asking`; returns with the answer."""
        self._asked = _ask(self._agent, view)

    def take(self) -> Asked | None:
        """See `Asking`."""
        asked, self._asked = self._asked, None
        return asked

    def close(self) -> None:
        """Nothing is left to wait for."""


class AskingMeanwhile:
    """Asks on a thread of its own, while the world goes on."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="agent")
        self._asked: Future[Asked] | None = None

    @property
    def busy(self) -> bool:
        """See `Asking`."""
        return self._asked is not None

    def ask(self, view: View) -> None:
        """See `Asking`; returns at once."""
        self._asked = self._pool.submit(_ask, self._agent, view)

    def take(self) -> Asked | None:
        """See `Asking`."""
        if self._asked is None or not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        return asked.result()

    def close(self) -> None:
        """See `Asking`."""
        self._pool.shutdown(cancel_futures=True)


def _ask(agent: Agent, view: View) -> Asked:
    try:
        answer = agent.act(view)
        return Asked(view, answer, "" if answer is not None else agent.silence())
    except (InfrastructureError, UserError):
        raise
    except Exception as error:
        LOG.exception("agent %s failed", agent.name)
        raise AgentError(f"{type(error).__name__}: {error}") from error
