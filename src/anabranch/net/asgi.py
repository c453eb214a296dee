"""Predictions over HTTP, as an ASGI app: ``/predict``, ``/health``, ``/metrics`` and ``/openapi.json``.

It needs the extra ``http``, so nothing else imports this module before predictions are wanted.
"""

from __future__ import annotations

import hmac
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException as AnyHTTPException

from anabranch.net.metrics import Metrics
from anabranch.net.predictions import BUSY, NoPredictionError, Predictor


class Question(BaseModel):
    """What is to be predicted: for an event, or for an entity at a time."""

    model_config = ConfigDict(extra="forbid")
    event: str | None = None
    entity: str | None = None
    time: str | None = None


class Answer(BaseModel):
    """A prediction, and who has taken part in it."""

    prediction: int
    probabilities: list[float]
    round: int
    answered: list[str]
    replaced: dict[str, str]
    milliseconds: float


class Problem(BaseModel):
    """Why there is no answer."""

    error: str


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in (
        (400, "The question is wrong."),
        (401, "The token is missing or wrong."),
        (404, "No client knows the event."),
        (BUSY, "Too many are under way."),
        (503, "A client is away that the model cannot do without."),
    )
}
_BEARER = HTTPBearer(auto_error=False)


def app(predictor: Predictor, metrics: Metrics, token: str | None = None) -> FastAPI:
    """The app.

    Args:
        predictor: answers the questions.
        metrics: of the same party.
        token: who asks must show it, but for ``/health``; None is nothing.
    """

    def allowed(shown: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        if token is not None and not hmac.compare_digest((shown.credentials if shown else "").encode(), token.encode()):
            raise HTTPException(401, "show the token: Authorization: Bearer ..", {"WWW-Authenticate": "Bearer"})

    made = FastAPI(
        title="Anabranch",
        version=version("anabranch"),
        summary="Predictions of a model that is learning.",
        docs_url=None,  # those pages load their programs from elsewhere
        redoc_url=None,
    )

    @made.exception_handler(NoPredictionError)
    async def refuse(request: Request, error: NoPredictionError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, error.status)

    @made.exception_handler(RequestValidationError)
    async def correct(request: Request, error: RequestValidationError) -> JSONResponse:
        wrong = [f"{'.'.join(map(str, each['loc'][1:])) or 'the question'}: {each['msg']}" for each in error.errors()]
        return JSONResponse({"error": "; ".join(wrong)}, 400)

    @made.exception_handler(AnyHTTPException)
    async def forbid(request: Request, error: AnyHTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @made.get("/predict", response_model=Answer, responses=_PROBLEMS, dependencies=[Depends(allowed)])
    async def predict(
        event: Annotated[str | None, Query(description="The event's name.")] = None,
        entity: Annotated[str | None, Query(description="The entity's id, where events are of entities.")] = None,
        time: Annotated[str | None, Query(description="Of the entity's event, ISO 8601 with its offset; now.")] = None,
    ) -> dict[str, Any]:
        """Predicts for an event, or for an entity at a time."""
        return await predictor({"event": event, "entity": entity, "time": time})

    @made.post("/predict", response_model=Answer, responses=_PROBLEMS, dependencies=[Depends(allowed)])
    async def predict_posted(question: Annotated[Question, Body()]) -> dict[str, Any]:
        """As ``GET``, for names that should be in no log of a proxy."""
        return await predictor(question.model_dump())

    @made.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the process is alive, and whether it is ready for rounds."""
        return {"alive": True, "ready": not metrics.reasons()}

    @made.get("/metrics", dependencies=[Depends(allowed)], response_class=Response)
    async def all_metrics() -> Response:
        """For Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return made
