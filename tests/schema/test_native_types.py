"""Each native type is in every module that needs it: one that is missing fails here, and not first at a restore.

Oracle: none about values. Other tests compare these modules with the database (`test_position.py`, tests/storage, ...).
"""

import pyarrow as pa
import pytest

from tests.support.value_forms import NATIVES as FORMS
from writetime.changes.clusterings import clustering_decoder
from writetime.changes.position import AT, position_encoder
from writetime.schema import columnar
from writetime.schema.connect import connect_type
from writetime.schema.mapping import arrow_type, avro_type, stored_avro_type, stored_type
from writetime.schema.serialise import serialiser
from writetime.schema.serialise_arrays import serialised_array
from writetime.schema.table import Column
from writetime.schema.types import _NATIVES, Native
from writetime.schema.values import decoder
from writetime.storage.plan import ColumnLayout

# No column of a regular table has these two.
VALUES = {"counter": bytes(8), "empty": b"", **{name: values[1] for name, values in FORMS.items()}}


@pytest.mark.parametrize("name", _NATIVES)
def test_each_module_has_the_type(name: str) -> None:
    assert name in VALUES, f"tests/support/value_forms.py lacks {name}"
    cql_type, data = Native(name), VALUES[name]
    value = decoder(cql_type)(data)
    assert decoder(cql_type)(serialiser(cql_type)(value)) == value
    stored = columnar.decode(pa.array([data], pa.binary()), cql_type)
    assert stored.type == stored_type(cql_type)
    assert columnar.decode(serialised_array(stored, cql_type), cql_type) == stored
    column = Column("c", cql_type)
    position = position_encoder([column])([data], AT)
    assert position_encoder([column])(clustering_decoder([column])(position), AT) == position
    assert all((arrow_type(cql_type), avro_type(cql_type), stored_avro_type(cql_type), connect_type(cql_type)))
    assert ColumnLayout("c", cql_type, 0).no_value is not None
