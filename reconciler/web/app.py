"""The admin listener's routes: /livez, /readyz and /metrics."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from reconciler.lifecycle import Progress
from reconciler.web.metrics import Metrics

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def admin_app(
    *, progress: Progress, metrics: Metrics, ready: Callable[[], Awaitable[str | None]]
) -> Starlette:
    """*ready* says why P2 could not be kept now, or None when it can."""

    async def livez(_: Request) -> Response:
        """The loops turn. No database in it: an outage is no reason to be killed."""
        stalled = progress.stalled()
        text = f"stalled: {', '.join(stalled)}" if stalled else "ok"
        return answer(text, status=503 if stalled else 200)

    async def readyz(_: Request) -> Response:
        reason = await ready()
        return answer(reason or "ok", status=503 if reason else 200)

    async def show_metrics(_: Request) -> Response:
        for name in progress.bounds:
            metrics.stalled.labels(name).set(name in progress.stalled())
        return Response(
            metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8", headers=HEADERS
        )

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", show_metrics),
        ]
    )


def answer(text: str, *, status: int) -> Response:
    return PlainTextResponse(text + "\n", status_code=status, headers=HEADERS)
