"""Each block is written once, by a rank that holds it, and the work is even."""

from hypothesis import given
from hypothesis import strategies as st

from zrun.state.blocks import Copies
from zrun.state.writers import Held, assign


def held(name: str, size: int = 8, copies: Copies = Copies.EQUAL, digest: str = "", place: str = "[0]:[2]") -> Held:
    return Held(name, "F32[2]", place, size, copies.value, digest)


def test_equal_blocks_are_spread_evenly() -> None:
    blocks = [held(f"w{i}", size) for i, size in enumerate([8, 8, 4, 4, 4, 4])]
    plan = assign([blocks, blocks])
    assert sorted(sum(blocks[i].bytes for i in mine) for mine in plan) == [16, 16]


def test_the_first_rank_has_the_true_buffers() -> None:
    blocks = [held(f"b{i}", copies=Copies.FIRST) for i in range(4)]
    assert assign([blocks, blocks]) == [{i: f"b{i}" for i in range(4)}, {}]


def test_differing_blocks_get_a_name_of_their_own() -> None:
    def one(digest: str) -> list[Held]:
        return [held("b", copies=Copies.OWN, digest=digest)]

    assert assign([one("x"), one("y"), one("x")]) == [{0: "b"}, {0: "b#rank-1"}, {}] or assign(
        [one("x"), one("y"), one("x")]
    ) == [{}, {0: "b#rank-1"}, {0: "b"}]


def test_a_name_that_means_another_tensor_elsewhere_is_kept_apart() -> None:
    other = Held("w", "F32[3]", "[0]:[3]", 12, Copies.OWN.value, "z")
    assert assign([[held("w", copies=Copies.OWN, digest="a")], [other]]) == [{0: "w"}, {0: "w#rank-1"}]


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3)), unique=True, max_size=8),
        min_size=1,
        max_size=5,
    )
)
def test_every_block_has_exactly_one_writer(described: list[list[tuple[str, int]]]) -> None:
    ranks = [[held(name, place=f"[{at}]:[2]") for name, at in mine] for mine in described]
    plan = assign(ranks)
    written = [(ranks[rank][i].name, ranks[rank][i].place) for rank, mine in enumerate(plan) for i in mine]
    assert sorted(written) == sorted({(b.name, b.place) for mine in ranks for b in mine})
