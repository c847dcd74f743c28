"""The forms of a dead letter, so that its topic always accepts one.

A dead letter is the whole message: key, value and headers, with added headers. The topic may refuse that as too large:
clients compress in different ways, and the limits of two topics differ. Then the letter has the beginning of key and
value and no original headers; and if that is refused, too, it is only a reference: the added headers. Both have the
header `dead-letter.shortened`. The whole message stays at its origin, until the retention of that topic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

HEADER_PREFIX = "dead-letter."
SHORTENED = "shortened"
"""The added header of a letter that is not the whole message; its value gives the sizes of the message."""
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})
"""Errors about the size of a message. To send it again never helps."""
_KEY_BYTES, _VALUE_BYTES, _TEXT_BYTES = 1024, 64 * 1024, 256


@dataclass(frozen=True)
class Form:
    """A dead letter as it is sent."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


def forms_of(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]], added: Sequence[tuple[str, bytes]]
) -> list[Form]:
    """Return the forms of a dead letter, the largest first. `added` are its headers without their prefix."""
    sizes = f"key {len(key or b'')} B, value {len(value or b'')} B, headers {sum(len(v) for _, v in headers)} B"
    own = [(name, text) for name, text in added if name != SHORTENED]
    was_short = next((text for name, text in added if name == SHORTENED), sizes.encode())
    cut = [(name, text[:_TEXT_BYTES]) for name, text in own]
    return [
        Form(key, value, [*headers, *_prefixed(added)]),
        Form(key and key[:_KEY_BYTES], value and value[:_VALUE_BYTES], _prefixed([*own, (SHORTENED, was_short)])),
        Form(None, None, _prefixed([*cut, (SHORTENED, was_short)])),
    ]


def produce_fitting(
    producer: Producer, topic: str, forms: Sequence[Form], delivered: Callable[[KafkaError | None], None]
) -> None:
    """Hand over the first form of a dead letter that its topic accepts. `delivered` gets the last outcome. The producer
    must send each message in a batch of its own (`batch.num.messages`), as Kafka refuses whole batches. Raises
    BufferError: the client's queue is full; KafkaException: the client refuses the smallest form.
    """
    form, smaller = forms[0], forms[1:]

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is None or error.code() not in TOO_LARGE or not smaller:
            delivered(error)
            return
        try:
            produce_fitting(producer, topic, smaller, delivered)
        except BufferError as e:
            delivered(KafkaError(KafkaError._QUEUE_FULL, str(e)))
        except KafkaException as e:
            delivered(e.args[0])

    try:
        producer.produce(topic, key=form.key, value=form.value, headers=[*form.headers], on_delivery=on_delivery)
    except BufferError:
        raise
    except Exception as e:
        is_lasting = not isinstance(e, KafkaException) or e.args[0].code() in TOO_LARGE
        if not is_lasting or not smaller:
            raise
        produce_fitting(producer, topic, smaller, delivered)


def _prefixed(added: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return [(HEADER_PREFIX + name, text) for name, text in added]
