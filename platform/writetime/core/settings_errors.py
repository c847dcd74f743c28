"""Describes the faults of settings."""

import difflib
from typing import Any

from pydantic import BaseModel, ValidationError


def faults(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Describe the faults, setting by setting; for an unknown setting, suggest the intended one."""
    return [f"{'.'.join(map(str, fault['loc']))}: {_reason(fault, model)}" for fault in error.errors()]


def _reason(fault: Any, model: type[BaseModel]) -> str:
    if fault["type"] != "extra_forbidden":
        return fault["msg"]
    *sections, name = fault["loc"]
    known: Any = model
    for section in sections:
        field = known.model_fields.get(section)
        known = field.annotation if field else None
        if not isinstance(known, type) or not issubclass(known, BaseModel):
            return "there is no such setting"
    close = difflib.get_close_matches(str(name), known.model_fields, n=1)
    return f"there is no such setting; is it {close[0]}?" if close else "there is no such setting"
