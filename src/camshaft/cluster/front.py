"""Front: the deployment that answers HTTP, by the same application as on one machine, with engines in other processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.types import ASGIApp

from camshaft.cluster.front_model import FrontModel
from camshaft.cluster.remote_engine import RemoteEngine
from camshaft.serve.app import make_app
from camshaft.serve.guard import Guard
from camshaft.serve.models.entry import Card
from camshaft.serve.models.models import Models
from camshaft.serve.models.served import Served
from camshaft.serve.models.spec import ModelSpec
from camshaft.serve.request_log import LogPlace, open_log


class FrontServed(Served):
    """A model whose weights are in other processes."""

    @property
    def nbytes(self) -> int:
        """0: its weights are in other processes."""
        return 0


@dataclass(frozen=True)
class Fronted:
    """A model of the front and its maximum number of replicas."""

    spec: ModelSpec
    most_replicas: int

    def open(self, handle: Any) -> FrontServed:
        """Returns the model for the application; `handle` calls its replicas."""
        slots, context = self.spec.options["sessions"], self.spec.options["context"]
        lm = FrontModel(self.spec.model, context=context, n_slots=slots * self.most_replicas)
        call = handle.options(stream=True).answer.remote
        engine = RemoteEngine(lm, call, max_queue=self.spec.queue * self.most_replicas)
        return FrontServed(self.spec.name, engine, aliases=self.spec.aliases)


class Front:
    """The class of the HTTP deployment, made by Ray Serve's `ingress`."""

    def __init__(
        self, fronted: Sequence[Fronted], guard: Guard, handles: Sequence[Any], log: LogPlace | None = None
    ) -> None:
        self._cards = [
            Card(each.spec.name, partial(each.open, handle), each.spec.kind, each.spec.aliases, base=each.spec.base)
            for each, handle in zip(fronted, handles, strict=True)
        ]
        self._guard, self._log = guard, log

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application; Ray Serve calls this in the event loop. Raises SettingError if the log cannot be opened."""
        to_log = None if self._log is None else open_log(self._log)  # until the process ends
        models = Models(self._cards)
        for card in self._cards:
            models.put(card.name, card.open())
        return make_app(models, self._guard, to_log)
