"""The slots of scans: who holds one, how far its pass is, when it is due; table and SQL."""

from reconciler.polling.scans.leasing import (
    begin_pass,
    complete,
    fail,
    holder,
    release,
    renew,
    save,
    take,
)
from reconciler.polling.scans.table import REFUSALS
from reconciler.polling.scans.turns import (
    bring_forward,
    due,
    make_due,
    register,
    set_watermark,
    start_over,
    state_of,
    states,
)
from reconciler.polling.slots import Mode

__all__ = [
    "REFUSALS",
    "Mode",
    "begin_pass",
    "bring_forward",
    "complete",
    "due",
    "fail",
    "holder",
    "make_due",
    "register",
    "release",
    "renew",
    "save",
    "set_watermark",
    "start_over",
    "state_of",
    "states",
    "take",
]
