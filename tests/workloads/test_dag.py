"""Algorithms on DAGs, by hand on a diamond: 0 before 1 and 2, both before 3; 4 alone."""

from parcae.workloads.job import (
    children_of,
    longest_paths,
    refined_classes,
    signatures,
    topological_order,
)

_DIAMOND = [(), (0,), (0,), (1, 2), ()]


def test_children_and_order_of_a_diamond() -> None:
    assert children_of(_DIAMOND) == [[1, 2], [3], [3], [], []]
    assert topological_order(_DIAMOND) == ([0, 4, 1, 2, 3], [])


def test_what_lies_on_a_cycle_or_behind_one_is_left_over() -> None:
    assert topological_order([(), (0, 2), (1,), (2,)]) == ([0], [1, 2, 3])
    assert topological_order([(0,)]) == ([], [0])


def test_the_longest_path_counts_the_node_itself() -> None:
    order, _ = topological_order(_DIAMOND)
    weights = [1.0, 10.0, 5.0, 2.0, 7.0]
    assert longest_paths(children_of(_DIAMOND), order, weights) == [13.0, 12.0, 7.0, 2.0, 7.0]


def test_nodes_are_of_one_class_where_label_ancestors_and_descendants_are_equal() -> None:
    alike = refined_classes(_DIAMOND, ["a", "b", "b", "c", "a"])
    assert alike[1] == alike[2]
    assert alike[0] != alike[4]  # equal labels, other descendants
    assert len(set(refined_classes(_DIAMOND, ["a", "b", "x", "c", "a"]))) == 5


def test_signatures_are_equal_between_dags_of_other_order() -> None:
    order, _ = topological_order(_DIAMOND)
    first = signatures(_DIAMOND, order, ["a", "b", "b", "c", "a"])
    turned = [(1, 2), (3,), (3,), (), ()]
    second = signatures(turned, topological_order(turned)[0], ["c", "b", "b", "a", "a"])
    assert first[1] == first[2]
    assert first[0] == second[3]
    assert first[3] == second[0]
    assert first[0] != first[4]
