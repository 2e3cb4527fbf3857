import numpy as np
from keras import ops

from keras_transformer.decoding.random_numbers import combine, key_of_tokens, uniform


def murmur(x: int) -> int:
    """MurmurHash3's fmix32 in Python's integers."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) % 2**32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) % 2**32
    return x ^ (x >> 16)


def expected_key(key: int, value: int) -> int:
    return murmur(murmur(key % 2**32) ^ ((value + 0x9E3779B9) % 2**32))


def unsigned(tensor):
    return ops.convert_to_numpy(tensor).astype("int64") % 2**32


def int32(values):
    return ops.convert_to_tensor(np.array(values, "int32"))


def test_keys_are_those_of_murmurhash_on_every_backend():
    keys, values = [0, 1, -1, 2**31 - 1, -(2**31), 12345], [7, 0, -1, 3, 99, 2**31 - 1]
    found = unsigned(combine(int32(keys), int32(values)))
    assert found.tolist() == [*map(expected_key, keys, values)]


def test_numbers_are_the_upper_bits():
    keys = np.array([0, 511, 512, -1, 2**31 - 1, -(2**31)], "int32")
    found = ops.convert_to_numpy(uniform(int32(keys)))
    expected = ((keys.astype("int64") % 2**32) // 512 + 0.5) / 2**23
    np.testing.assert_array_equal(found, expected.astype("float32"))
    assert (found > 0).all() and (found < 1).all()


def test_numbers_are_uniform_and_independent():
    count = 10_000
    keys = combine(combine(int32(3), int32(range(100)))[:, None], int32(range(100)))
    numbers = ops.convert_to_numpy(uniform(keys))
    counts = np.bincount((numbers * 64).astype(int).ravel(), minlength=64)
    chi_square = np.sum((counts - count / 64) ** 2) / (count / 64)
    assert 63 - 4 * np.sqrt(126) < chi_square < 63 + 4 * np.sqrt(126)
    for one, two in [
        (numbers[:, 1:], numbers[:, :-1]),
        (numbers[1:], numbers[:-1]),
        (numbers, numbers.T),
    ]:
        correlation = np.corrcoef(one.ravel(), two.ravel())[0, 1]
        assert abs(correlation) < 4 / np.sqrt(one.size)


def test_padding_does_not_change_the_key():
    rows = np.array([[5, 6, 3, 0, 0], [6, 5, 3, 0, 0], [5, 6, 3, 9, 9]], "int32")
    mask = np.array([[1, 1, 1, 0, 0]] * 3, bool)
    padded = unsigned(key_of_tokens(int32(rows), ops.convert_to_tensor(mask)))
    exact = unsigned(
        key_of_tokens(int32(rows[:, :3]), ops.convert_to_tensor(mask[:, :3]))
    )
    assert padded.tolist() == exact.tolist()
    assert padded[0] == padded[2] != padded[1]
