"""The tests that prove each row of the acceptance (D1–D10, N1–N5, B1–B16 of the specification of views, section 16)."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from places import REPO, TESTS

NODE = REPO / "labextension" / "test"

# Row -> its tests: "file::function" of pytest (without test_ and .py), "file.ts::title" of Node.
PROOFS: dict[str, tuple[str, ...]] = {
    "D1": (
        "doc_everywhere::random_graphs", "doc_everywhere::models_to_read", "doc_everywhere::models_that_learn",
        "doc_everywhere::networks_of_the_tests", "lesson_claims::what_a_notebook_promises_is_so",
        "doc::random_documents_keep_every_rule", "doc_holds::each_rule_finds_its_breach",
    ),
    "D2": (
        "doc::random_documents_keep_every_rule", "doc::steps_replay_from_the_document_alone",
        "doc_everywhere::every_position_of_the_scrubber_is_a_graph",
    ),
    "D3": (
        "doc_holds::the_same_bytes_in_every_process", "files::timeless_files_of_two_studies_are_equal_bytes",
        "layout::layouts_do_not_depend_on_hashes", "doc_everywhere::the_order_of_dictionaries_does_not_matter",
    ),
    "D4": (
        "layout::nothing_overlaps", "layout::edges_run_their_way", "layout::integers_inside_the_picture",
        "layout::no_line_runs_across_a_node", "layout.test.ts::every layout of the corpus is Python's to the byte",
    ),
    "D5": (
        "svg::well_formed_and_harmless", "svg::sizes", "svg::at_most_300_nodes_and_the_last_line_says_so",
        "svg::names_for_people_who_do_not_see_it",
    ),
    "D6": ("view_diff::classes_part_the_nodes_and_itself_is_all_same",),
    "D7": ("text_twins::a_twin_names_every_entity_of_its_view", "text_twins::every_view_has_a_twin_and_a_slice"),
    "D8": (
        "svg::labels_are_literal", "svg::right_to_left_and_wide_letters_keep_to_their_place",
        "text_twins::labels_are_shown_and_steer_nothing", "files::no_label_can_close_the_script_of_a_page",
        "front::hostile_names_are_text_everywhere", "lab::names_disturb_nothing_and_a_closed_study_stays_readable",
    ),
    "D9": (
        "magics::wrong_lines_are_one_red_line", "magics::a_wrong_cell_says_one_line_and_changes_nothing",
        "red_team::what_is_no_node_is_named", "red_team::a_json_file_of_another_format_and_a_variable_that_is_none",
    ),
    "D10": ("cli::explain_json_is_a_slice_of_the_document", "red_team::json_of_a_step_and_of_a_difference"),
    "N1": (
        "state.test.ts::a click selects, shift adds and takes away, Esc clears",
        "state.test.ts::history walks back and forward; a new selection forgets what lay ahead",
        "state.test.ts::what changes nothing gives the same state",
    ),
    "N2": ("explore.test.ts::what is drawn is what a search through everything finds, in the order of all",),
    "N3": (
        "keys.test.ts::keyboard walk: left goes through the inputs and right through the users, each once, in order, "
        "and round again",
        "keys.test.ts::keyboard walk: up and down read all boxes row by row, and a pill leads beside its first reader",
        "keys.test.ts::keyboard walk: every node is reached from every other one of its component by left and right "
        "alone",
    ),
    "N4": (
        "host.test.ts::replies in another order find their commands; a doubled one is nothing",
        "host.test.ts::a reply that a later one overtook by seconds is lost, a fresh one is waited for",
        "host.test.ts::frames out of order lose no point, and old figures do not come back",
        "host.test.ts::every frame is acknowledged after it was drawn, with the model's revision",
        "host.test.ts::an older document does not replace a newer one",
    ),
    "N5": (
        "explore.test.ts::every query finds what Python finds", "explore.test.ts::a bad pattern is told, not thrown",
        # A breakpoint has one parser only: the page sends its text to Python and shows the answer.
        "until::what_means_nothing_is_refused_with_a_caret", "until::what_a_condition_means",
    ),
    "B1": ("bars::b1_a_graph_of_6236_nodes_moves_smoothly",),
    "B2": ("keyboard::b2_find_follow_open_and_read_without_a_pointer",),
    "B3": ("bars::b3_a_thousand_updates_a_second",),
    "B4": (
        "bars::b4_at_200_percent_nothing_is_cut", "bars::b4_forced_colours_keep_outlines_and_letters",
        "look::forced_colours_show_what_is_selected_in_every_tab",
        "reading::at_200_percent_every_word_of_every_tab_can_be_read",
        "reading::letters_of_twice_the_size_have_room",
        "reading::forced_colours_have_no_colour_of_ours_behind_words",
    ),
    "B5": ("notebooks::every_graph_cell_is_live_and_reads_without_scripts",),
    "B6": ("lit::b6_every_pane_lights_what_the_links_say", "lab::one_selection_lights_what_the_links_say"),
    "B7": (
        "front::the_replay_moves_nothing_and_ends_with_the_optimized_graph",
        "explore.test.ts::a replay begins and ends with the stages of its pass, and never moves a node",
    ),
    "B8": ("lab::buttons_while_a_cell_runs", "runner::a_thousand_commands_from_several_threads_lose_no_step"),
    "B9": (
        "hosts::b9_a_page_that_reloads_in_mid_run_says_so_and_is_live_again_after_it",
        "hosts::b9_a_kernel_that_is_restarted_leaves_pictures_that_say_so",
        "hosts::b10_a_saved_notebook_is_interactive_without_its_kernel",
        "bars::when_the_kernel_is_gone_the_picture_stays_and_says_so",
        "host.test.ts::a kernel that ends says so at once, though it closes no comm; nothing listens to it any more",
    ),
    "B10": ("hosts::b10_a_saved_notebook_is_interactive_without_its_kernel",),
    "B11": (
        "two_views::b11_two_views_share_the_selection_and_keep_their_zoom",
        "hosts::two_tabs_on_one_notebook_show_one_session_and_one_selection",
    ),
    "B12": ("bars::b12_the_audit_finds_nothing",),
    "B13": (
        "files::a_page_draws_from_disk_without_any_request", "files::a_page_allows_its_own_script_alone",
        "front::a_large_page_from_disk_lays_out_in_a_worker_and_asks_for_nothing",
    ),
    "B14": (
        "hosts::b14_without_the_extension_views_are_live_and_completion_works", "magics::completion",
        "hosts::a_package_that_the_page_does_not_share_costs_one_feature_and_is_said",
    ),
    "B15": (
        "lab::a_nan_lights_the_line_that_made_it", "inspection::what_is_injected_at_a_dispatch_is_reported_there",
        "widget::the_first_bad_dispatch_is_named",
    ),
    "B16": ("notebooks::every_graph_cell_is_live_and_reads_without_scripts",),
    "B17": (
        "bars::what_if_a_rule_were_off", "optimize_report::why_not_of_two_neighbours",
        "compiler_views::other_options_make_a_variant_and_show_it", "compiler_views::nodes_in_an_answer_are_links",
        "compiler_views::times_stand_beside_their_prediction",
        "compiler_views::a_gradient_is_checked_against_differences",
        "watches_lab::the_panel_watches_breaks_and_steps_by_dispatches",
        "microscope_page::b17_numbers_histogram_and_heat_map_are_those_of_python",
    ),
}  # fmt: skip
ROWS = [*(f"D{i}" for i in range(1, 11)), *(f"N{i}" for i in range(1, 6)), *(f"B{i}" for i in range(1, 18))]


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file: functions of pytest, titles of Node."""
    if file.endswith(".ts"):
        text = (NODE / file).read_text(encoding="utf-8")
        return frozenset(re.findall(r'^test\("((?:[^"\\]|\\.)+)"', text, re.MULTILINE))
    (path,) = TESTS.glob(f"*/test_{file}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name.removeprefix("test_") for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_row_is_here_in_order() -> None:
    assert list(PROOFS) == ROWS


@pytest.mark.parametrize("row", ROWS)
def test_its_tests_are_there(row: str) -> None:
    for proof in PROOFS[row]:
        file, _, name = proof.partition("::")
        assert name in names_in(file), proof
