"""Work queues in the database: items are inserted; fenced conditional writes change their states."""

from writetime.workqueue.controls import (
    ItemState,
    ScheduleState,
    UnknownItem,
    cancel,
    cancel_all,
    item_state,
    pause,
    resume,
    schedule,
    schedules,
    send_event,
    unschedule,
)
from writetime.workqueue.dead_items import redrive
from writetime.workqueue.enqueue import Enqueuer, EnqueueUnknown, ItemConflict, NewItem
from writetime.workqueue.inspect import inspect
from writetime.workqueue.items import GiveUp, Item
from writetime.workqueue.recurrence import InvalidSchedule, Schedule
from writetime.workqueue.steps import Asleep, StepRefused
from writetime.workqueue.worker import Worker

__all__ = [
    "Asleep",
    "EnqueueUnknown",
    "Enqueuer",
    "GiveUp",
    "InvalidSchedule",
    "Item",
    "ItemConflict",
    "ItemState",
    "NewItem",
    "Schedule",
    "ScheduleState",
    "StepRefused",
    "UnknownItem",
    "Worker",
    "cancel",
    "cancel_all",
    "inspect",
    "item_state",
    "pause",
    "redrive",
    "resume",
    "schedule",
    "schedules",
    "send_event",
    "unschedule",
]
