import pytest

from tests.support.parts import PARTS, of_other_parts


@pytest.mark.parametrize("count", [0, 1, 2, 7, 84])
def test_each_long_module_is_in_one_part(count: int) -> None:
    modules = [f"tests/{folder}/test_{number}.py" for number in range(count) for folder in "ab"]
    others = [of_other_parts(modules * 2, 0x3D691F80 + part) for part in range(PARTS)]
    assert all(sum(module not in other for other in others) == 1 for module in modules)
    sizes = [len(modules) - len(other) for other in others]
    assert max(sizes) - min(sizes) <= 1
