import pytest

from mm_dist import LaunchError
from mm_dist._launchers._slurm_nodes import expand_node_list, expand_tasks_per_node


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1-2],gpu[08-10,15],m", ["n1", "n2", "gpu08", "gpu09", "gpu10", "gpu15", "m"]),
        ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
        ("a-[1,3].cluster", ["a-1.cluster", "a-3.cluster"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
    ids=["one", "range", "list", "two-brackets", "suffix", "padding"],
)
def test_expand_node_list_matches_scontrol(text, nodes):
    assert expand_node_list(text) == nodes


@pytest.mark.parametrize(
    "text",
    ["n[1-", "n[1-]", "n[]", "n[a-b]", "n[3-1]", "n[1]]", "n1,,n2", ",", "(null)", "n 1", "[1-2"],
)
def test_expand_node_list_refuses_what_it_cannot_read(text):
    with pytest.raises(LaunchError, match="Slurm node list"):
        expand_node_list(text)


@pytest.mark.parametrize("text", ["n[1-70000]", "a[1-999]b[1-999]"])
def test_expand_node_list_refuses_more_nodes_than_slurm_has(text):
    with pytest.raises(LaunchError, match=r"nodes are more than the 65536"):
        expand_node_list(text)


def test_expand_tasks_per_node_repeats_counts():
    assert expand_tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert expand_tasks_per_node("4") == [4]


def test_expand_tasks_per_node_refuses_what_it_cannot_read():
    with pytest.raises(LaunchError, match=r"tasks per node '2\(y3\)'"):
        expand_tasks_per_node("2(y3)")


def test_expand_tasks_per_node_refuses_more_nodes_than_slurm_has():
    with pytest.raises(LaunchError, match="70000 nodes are more than the 65536"):
        expand_tasks_per_node("2(x70000)")
