"""The sources that have reported a table, after many messages."""

import random

from writetime.wire.watermarks import SourceMarks, Sources, TableMark


def test_the_sources_of_each_table_are_those_that_report_it() -> None:
    """The earlier results do not change."""
    seed = random.getrandbits(32)
    print(f"{seed=}")
    random_ = random.Random(seed)
    sources, before = Sources(), []
    for _ in range(300):
        messages: dict[str, SourceMarks | None] = {
            str(random_.randrange(6)): random_.choice(
                [
                    None,
                    SourceMarks({f"k.{random_.randrange(5)}": TableMark(random_.randrange(9)) for _ in range(3)}),
                    SourceMarks(retired=True),
                ]
            )
            for _ in range(random_.randrange(4))
        }
        before.append((sources, dict(sources)))
        sources = sources.after(messages)
        expected = {**before[-1][1], **messages}
        assert sources == {source: marks for source, marks in expected.items() if marks is not None}
    for each, content in [*before, (sources, dict(sources))]:
        assert each == content
        for table in (f"k.{n}" for n in range(6)):
            assert each.of(table) == {source: marks for source, marks in content.items() if table in marks.tables}
