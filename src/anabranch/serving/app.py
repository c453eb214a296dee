"""Predictions over HTTP, as an ASGI app: ``/predict``, ``/health``, ``/metrics`` and ``/openapi.json``.

It needs the extra ``http``, so nothing else imports this module before predictions are wanted.
"""

from __future__ import annotations

import asyncio
import hmac
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from anabranch.serving.metrics import Metrics
from anabranch.serving.predictor import BUSY, LARGEST, NoPredictionError, Predictor, read_question

SECONDS = 10.0
"""In which a question has to be there."""


class Question(BaseModel):
    """What is to be predicted: for an event, for an entity at a time, or for a time."""

    event: str | None = Field(None, description="The event's name.")
    entity: str | None = Field(None, description="The entity's id, where events are of entities.")
    entity_hash: str | None = Field(None, description="The keyed hash of its id, in hex, instead of the id.")
    time: str | None = Field(
        None,
        description="Of the entity's event: now, or ISO 8601 with its offset; left out, now. Where events are of times "
        "alone, it is all that is asked for.",
    )


class Answer(BaseModel):
    """A prediction, and who has taken part in it."""

    prediction: int = Field(description="The class.")
    probabilities: list[float] = Field(description="Of each class.")
    round: int = Field(description="How many rounds are in the model.")
    answered: list[str] = Field(description="The clients that answered.")
    replaced: dict[str, str] = Field(description="The others, and by what.")
    milliseconds: float = Field(description="How long it took.")


class Problem(BaseModel):
    """Why there is no answer."""

    error: str


def app(predictor: Predictor, metrics: Metrics, token: str | None = None) -> Starlette:
    """Return the app.

    Args:
        predictor: answers the questions.
        metrics: of the same party.
        token: who asks must show it, but for ``/health``; None is nothing.
    """

    def shown(request: Request) -> None:
        if token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), token.encode()):
            raise HTTPException(401, "show the token: Authorization: Bearer ..", {"WWW-Authenticate": "Bearer"})

    async def predict(request: Request) -> Response:
        shown(request)
        question = dict(request.query_params) if request.method != "POST" else await _body(request)
        return JSONResponse(await predictor(question))

    async def health(request: Request) -> Response:
        return JSONResponse({"alive": True, "ready": not metrics.reasons()})

    async def all_metrics(request: Request) -> Response:
        shown(request)
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    described = openapi()

    async def description(request: Request) -> Response:
        return JSONResponse(described)

    async def refuse(request: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, NoPredictionError) else 500
        return JSONResponse({"error": str(error)}, status)

    async def forbid(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    return Starlette(
        routes=[
            Route("/predict", predict, methods=["GET", "POST"]),
            Route("/health", health),
            Route("/metrics", all_metrics),
            Route("/openapi.json", description),
        ],
        exception_handlers={NoPredictionError: refuse, HTTPException: forbid},
    )


async def _body(request: Request) -> dict[str, Any]:
    raw = b""
    try:
        async with asyncio.timeout(SECONDS):
            async for part in request.stream():
                raw += part
                if len(raw) > LARGEST:
                    break
    except TimeoutError:
        raise HTTPException(408, f"a question has to be there within {SECONDS:g} seconds") from None
    return read_question(raw)


def openapi() -> dict[str, Any]:
    """Return the description for programs, of OpenAPI 3.1."""

    def schema(model: type[BaseModel]) -> dict[str, Any]:
        return {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}

    def response(text: str, model: type[BaseModel]) -> dict[str, Any]:
        return {"description": text, "content": {"application/json": schema(model)}}

    answers = {
        "200": response("The prediction.", Answer),
        **{
            str(status): response(text, Problem)
            for status, text in (
                (400, "The question is wrong."),
                (401, "The token is missing or wrong."),
                (404, "No client has features for the event, or all are away."),
                (408, "The question has not come in time."),
                (BUSY, "Too many are under way."),
                (503, "A client is away that the model cannot do without."),
            )
        },
    }
    fields = Question.model_json_schema()["properties"].items()
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string"}, "description": field["description"]}
        for name, field in fields
    ]
    security: list[dict[str, list[str]]] = [{}, {"token": []}]
    asked = {"required": True, "content": {"application/json": schema(Question)}}
    plain = {"description": "In Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Anabranch",
            "version": version("anabranch"),
            "summary": "Predictions of a model that is learning.",
        },
        "paths": {
            "/predict": {
                "get": {
                    "summary": "Predicts for an event, for an entity at a time, or for a time.",
                    "parameters": parameters,
                    "responses": answers,
                    "security": security,
                },
                "post": {
                    "summary": "As GET, for names that should be in no log of a proxy.",
                    "requestBody": asked,
                    "responses": answers,
                    "security": security,
                },
            },
            "/health": {
                "get": {
                    "summary": "Whether the process is alive, and ready for rounds.",
                    "responses": {"200": {"description": "It is alive."}},
                }
            },
            "/metrics": {"get": {"summary": "For Prometheus.", "responses": {"200": plain}, "security": security}},
        },
        "components": {
            "schemas": {each.__name__: each.model_json_schema() for each in (Question, Answer, Problem)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
