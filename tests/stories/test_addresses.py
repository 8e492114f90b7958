"""An address that cannot be listened on: what a restart may mend is no fault of configuration."""

import socket

import pytest

from tests.world import World

pytestmark = pytest.mark.anyio


async def test_a_port_that_is_taken_is_worth_another_start(world: World):
    """The process before us may still be draining: 75, after which systemd tries again; not 78."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        code, _, err = await world.command("serve", RECONCILER_SERVER__LISTEN=taken)
    assert (75, True) == (code, f"server.listen = '{taken}'" in err)


async def test_an_address_that_is_not_there_yet_is_worth_another_start(world: World):
    """At boot the network may be late; 192.0.2.1 is nobody's (RFC 5737)."""
    code, _, err = await world.command("serve", RECONCILER_SERVER__LISTEN="192.0.2.1:3000")
    assert (1, True) == (code, "server.listen" in err)
