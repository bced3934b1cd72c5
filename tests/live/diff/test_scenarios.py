"""Where each scenario (A1 to A25) and each failure of the older tool (W1 to W20) is shown: file and name of the tests.

The numbers are those of the description of PaDiff that this package was written against. Other folders of tests are
named from the root of the tests.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]

EQUAL, FAULTS, OPTIONS = "diff/test_equal_models", "diff/test_faults_are_found", "diff/test_options_and_steps"
OLD, RECORDINGS, TRAINING = "diff/test_old_failures", "diff/test_recordings", "diff/test_recorded_training"
OLD_RECORDINGS = "diff/test_old_failures_in_recordings"
STEP, MAP, RESULTS, DOCUMENTS = (
    "diff/test_single_step",
    "diff/test_layer_map",
    "diff/test_results",
    "diff/test_documented_calls",
)
PADDLE, PROXY, LOADERS = "paddle/test_paddle_and_torch", "compat/test_padiff_proxy", "diff/test_dataloaders"
WEIGHTS, LARGE, HELD = "weights/test_what_cannot_be_copied", "diff/test_large_pairs", "diff/test_held_tensors"

SCENARIOS: dict[str, list[tuple[str, str]]] = {
    "A1 residual network": [(EQUAL, "test_a_residual_network_agrees_with_its_twin"),
        (EQUAL, "test_without_copied_weights_the_first_layer_with_weights_is_named"),
        (PADDLE, "test_weights_go_either_way"), (PADDLE, "test_without_weights_the_first_layer_is_named")],
    "A2 called in another order": [(EQUAL, "test_the_order_of_calls_may_differ")],
    "A3 one layer called twice": [(EQUAL, "test_calls_of_a_shared_layer_are_matched_by_their_number")],
    "A4 a gradient of one branch": [(FAULTS, "test_a_doubled_gradient_is_found_in_its_branch")],
    "A5 lists of outputs": [(EQUAL, "test_lists_of_outputs_and_several_inputs"),
        (PADDLE, "test_functions_wrappers_and_lists_of_outputs")],
    "A6 several inputs": [(EQUAL, "test_lists_of_outputs_and_several_inputs")],
    "A7 in place": [(EQUAL, "test_an_in_place_activation_leaves_what_was_recorded_alone"),
        (HELD, "test_an_output_that_is_overwritten_is_compared_as_it_was_given")],
    "A8 mapped layers": [(PADDLE, "test_attention_and_recurrent_layers"),
        (PADDLE, "test_convolution_and_batch_norm_in_both_modes")],
    "A9 automatic map": [(MAP, "test_auto_maps_attention_and_recurrent_layers_by_their_order"),
        (PADDLE, "test_attention_and_recurrent_layers")],
    "A10 single step": [(STEP, "test_ten_layers_that_agree"),
        (STEP, "test_a_gradient_changed_between_layers_is_blamed_once"),
        (STEP, "test_layers_with_several_outputs_shared_layers_and_repeated_inputs")],
    "A11 forward only": [(OPTIONS, "test_forward_only_leaves_no_gradient")],
    "A12 optimizers": [(OPTIONS, "test_optimizer_steps_really_run"),
        (PADDLE, "test_optimizers_and_losses_over_ten_steps")],
    "A13 losses": [(OPTIONS, "test_losses_with_bound_labels_are_called_and_compared")],
    "A14 weights and gradients apart": [(RECORDINGS, "test_weights_and_gradients_are_checked_apart")],
    "A15 loaders": [(LOADERS, "test_equal_batches_agree_and_a_shifted_one_is_named"),
        (LOADERS, "test_any_structure_of_a_batch"), (LOADERS, "test_loaders_of_unequal_length_do_not_agree")],
    "A16 recordings compared": [(RECORDINGS, "test_same_input_agrees_other_input_does_not")],
    "A17 every second step": [(TRAINING, "test_every_second_step_is_recorded_and_compared_under_its_number")],
    "A18 accumulated gradients": [(TRAINING, "test_accumulated_gradients"), (RECORDINGS, "test_every_step_is_checked")],
    "A19 recorded with a loader": [(TRAINING, "test_ten_batches_of_a_loader")],
    "A20 autocast": [(EQUAL, "test_autocast_agrees_with_full_precision_within_its_rounding")],
    "A21 many usages": [(TRAINING, "test_accumulated_gradients"),
        (TRAINING, "test_only_some_classes_are_recorded_and_compared")],
    "A22 white and black lists": [(PROXY, "test_a_white_list_wins_over_a_black_one_and_may_name_classes"),
        (PROXY, "test_a_black_list_takes_out_a_layer_what_is_inside_it_or_both")],
    "A23 one framework": [(EQUAL, "test_an_added_activation_makes_models_of_one_framework_differ")],
    "A24 functions as nodes": [(OLD, "test_api_calls_inside_a_layer_of_the_user_are_nodes_of_their_own")],
    "A25 ResNet-18": [(PADDLE, "test_resnet_18_of_the_library_agrees_and_a_fault_is_found"),
        (LARGE, "test_two_resnets_agree_in_training_mode")],
    "W1 a recording compared with itself": [(OLD, "test_models_of_one_class_are_two_models"),
        (OLD_RECORDINGS, "test_recordings_of_one_class_are_two_recordings"),
        (PROXY, "test_two_models_of_one_class_write_to_folders_of_their_own")],
    "W2 means hide permutations and shapes":
        [(FAULTS, "test_permuted_rows_and_other_shapes_are_differences_unless_means_are_asked_for")],
    "W3 NaN equals NaN": [(FAULTS, "test_nan_equals_nothing")],
    "W4 only the first step is checked": [(OLD_RECORDINGS, "test_a_recording_compares_all_its_steps"),
        (RECORDINGS, "test_every_step_is_checked")],
    "W5 gradients of layers are not compared": [(OLD, "test_equal_gradients_are_really_compared"),
        (OLD_RECORDINGS, "test_recorded_gradients_of_layers_are_compared_and_not_their_outputs")],
    "W6 unknown options are swallowed": [(OPTIONS, "test_unknown_and_wrong_options_are_refused")],
    "W7 steps are ignored": [(OPTIONS, "test_optimizer_steps_really_run")],
    "W8 the loss is not compared": [(OPTIONS, "test_losses_with_bound_labels_are_called_and_compared")],
    "W9 missing bias, single step backward, norm statistics, differences that cancel":
        [("diff/test_told_plainly", "test_a_bias_that_one_model_lacks_is_where_they_part"),
        (WEIGHTS, "test_a_bias_on_one_side_only_is_not_passed_over"),
        (STEP, "test_a_gradient_changed_between_layers_is_blamed_once"),
        (OLD, "test_running_statistics_are_copied_without_a_map"),
        (FAULTS, "test_differences_that_cancel_are_listed")],
    "W10 an error in a hook breaks all later calls":
        [(OLD, "test_an_exception_in_the_tools_own_hook_is_noted_and_leaves_no_trace")],
    "W11 an error in a model leaves hooks on it": [(OLD, "test_after_an_exception_everything_is_as_before"),
        (PADDLE, "test_after_an_exception_paddle_is_as_before"), (HELD, "test_nothing_is_held_afterwards")],
    "W12 settings leak into the next call": [(OPTIONS, "test_options_of_one_call_do_not_leak_into_the_next"),
        (RECORDINGS, "test_same_input_agrees_other_input_does_not")],
    "W13 single step with several outputs, either base":
        [(STEP, "test_layers_with_several_outputs_shared_layers_and_repeated_inputs"),
        (PADDLE, "test_single_step_agrees_in_both_directions")],
    "W14 bfloat16": [(OLD_RECORDINGS, "test_bfloat16_models_are_recorded_and_checked"),
        (EQUAL, "test_other_element_types"),
        (PADDLE, "test_shapes_that_do_not_fit_and_bfloat16")],
    "W15 dataclasses": [(OLD, "test_a_difference_in_one_field_of_a_dataclass_is_found"),
        (EQUAL, "test_dataclass_outputs_compare_also_with_a_tuple")],
    "W16 what is printed does not work": [(DOCUMENTS, "test_every_printed_example_runs_in_its_order"),
        (DOCUMENTS, "test_every_printed_option_is_taken_with_its_printed_default"),
        (DOCUMENTS, "test_environment_variables_of_the_documents_are_read_by_the_code"),
        (DOCUMENTS, "test_the_older_tools_switches_break_nothing_and_change_nothing"),
        (DOCUMENTS, "test_dumping_calls_take_what_their_signatures_say")],
    "W17 checkpoints": [(OLD, "test_a_fault_inside_a_checkpointed_block_is_found"),
        (EQUAL, "test_checkpointed_layers_are_compared")],
    "W18 folders are deleted": [(OLD, "test_user_folders_are_never_deleted"),
        (PROXY, "test_a_folder_that_is_there_is_left_alone")],
    "W19 recordings cannot be moved and hold little":
        [(RECORDINGS, "test_a_recording_may_be_moved_and_needs_no_framework_to_be_checked"),
        (OLD_RECORDINGS, "test_a_recording_holds_inputs_buffers_types_and_statistics_and_no_repeated_passes"),
        (OLD, "test_repeated_forward_passes_do_not_pile_up")],
    "W20 the report": [(RESULTS, "test_the_table_tells_everything_of_every_pair"),
        (RESULTS, "test_files_are_written_beside_what_is_there"),
        (RESULTS, "test_the_report_shows_trees_numbers_and_lines"),
        (OLD, "test_different_numbers_of_layers_are_told_with_their_places"),
        (OLD, "test_swapped_inputs_are_explained"),
        (OLD, "test_api_calls_inside_a_layer_of_the_user_are_nodes_of_their_own")],
}  # fmt: skip


@cache
def _tests_of(file: str) -> set[str]:
    path = next(one for one in (TESTS / "live" / f"{file}.py", TESTS / f"{file}.py") if one.exists())
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {one.name for one in tree.body if isinstance(one, ast.FunctionDef) and _does_something(one)}


def _does_something(test: ast.FunctionDef) -> bool:
    """An assertion, or an error that must come."""
    kinds = [type(node) for node in ast.walk(test)]
    return ast.Assert in kinds or ast.With in kinds


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_scenario_has_the_tests_that_the_table_names(scenario: str) -> None:
    for file, name in SCENARIOS[scenario]:
        assert name in _tests_of(file), f"{file}.py has no test {name}"


def test_no_scenario_is_left_out() -> None:
    numbers = {scenario.partition(" ")[0] for scenario in SCENARIOS}
    assert numbers == {f"A{at}" for at in range(1, 26)} | {f"W{at}" for at in range(1, 21)}
