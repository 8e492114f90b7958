"""`reconciler sandbox`."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reconciler.cli.shared import emit, json_option, reports_errors, run

if TYPE_CHECKING:
    from reconciler.proving.sandbox import World

TRY = """\
a pretend shop         {shop}
a pretend destination  {payments}

In another terminal:

  reconciler serve --config {config}

and in a third:

  curl {shop}/orders -d '{{"amount": 4200}}'
  curl {shop}/orders/ord_1 -d '{{"status": "paid", "paid": true}}'
  curl {payments}/effects
  curl '{shop}/orders/ord_1?webhook=lost' -d '{{"status": "shipped"}}'
  reconciler reconcile shop order ord_1 --dry-run --config {config}
  curl {payments}/behave -d '{{"status": 503}}'
  reconciler status --config {config}

What else there is: curl {shop}/ and curl {payments}/
Ctrl-C ends it; it goes on from where it was when it is started again.
"""


@click.command("sandbox")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reconciler-sandbox"),
    show_default=True,
    help="Where it keeps its state and the configuration.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of what it draws by chance.")
@click.option(
    "--first-port",
    type=click.IntRange(0, 65532),
    default=9100,
    show_default=True,
    help="The first of four on loopback: shop, destination, webhooks, admin; 0: any.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    expose_value=False,
    help="Taken as by every command, but not read: the sandbox writes one of its own.",
)
@json_option
@reports_errors
def command(*, directory: Path, seed: int, first_port: int, as_json: bool) -> None:
    """
    Play: a pretend shop whose webhooks you lose, repeat and delay with curl, a pretend
    destination that you break, and a configuration for a daemon between them.

    Runs until Ctrl-C; the daemon is yours to start, beside it.

    \b
    Example:
      reconciler sandbox --directory ./sandbox
    """
    from reconciler.proving import sandbox

    world = sandbox.prepare(directory, seed=seed, first_port=first_port)
    run(played(world, as_json=as_json))


async def played(world: "World", *, as_json: bool) -> None:
    from reconciler.proving import sandbox

    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    ports = (world.ports.shop, world.ports.payments)
    shop, payments = (f"http://127.0.0.1:{port}" for port in ports)

    def told() -> None:
        if as_json:
            emit({"config": str(world.config), "shop": shop, "destination": payments})
        else:
            click.echo(TRY.format(shop=shop, payments=payments, config=world.config))

    await sandbox.run(world, stop=stop, told=told)
