"""The limits that the page on security states are those of the code, and each of its claims has tests."""

from __future__ import annotations

import re
from typing import Any

import pytest

from embgrad.common import files, token_text, tolerance
from embgrad.common import safetensors as headers
from embgrad.common import text as visible
from embgrad.display import html
from embgrad.loading import texts, tokenizer
from embgrad.report.page import MOST_ENTRY
from embgrad.streaming import manifest
from embgrad.streaming import writer as writing
from tests.docs.pages import DOCS

PAGE = (DOCS / "security.md").read_text(encoding="utf-8")

#: By the beginning of a row of the page's table the constants in it, in order.
LIMITS: dict[str, tuple[int, ...]] = {
    "the header of a safetensors file": (headers.MOST_HEADER,),
    "the axes of an array": (headers.MOST_AXES,),
    "`config.json`, `tokenizer_config.json`, an index of shards": (files.MOST_JSON,),
    "the `manifest.json` of a stream": (manifest.MOST_MANIFEST,),
    "`vocab.txt`": (tokenizer.MOST_VOCABULARY, tokenizer.MOST_TOKENS),
    "`tokenizer.json`": (tokenizer.MOST_TOKENIZER,),
    "texts, ids or labels of a command, from a file or a pipe": (texts.MOST_INPUT,),
    "a token on a page or in the terminal": (token_text.MOST_SHOWN,),
    "combining marks on one letter in displayed text": (visible.MOST_MARKS,),
    "an entry of the provenance on a page; any other text there": (MOST_ENTRY, html.MOST_TEXT),
    "the number of weight matrices in a result, which determines the tolerance": (tolerance.MOST_DEPTH,),
}


def numbers(cell: str) -> tuple[int, ...]:
    return tuple(int(item.replace(",", "")) for item in re.findall(r"\d[\d,]*", cell))


def rows() -> dict[str, str]:
    part = PAGE.split("\n## The limits\n")[1].split("\n## ")[0]
    actual = re.findall(r"^\| (.+?) \| (.+?) \|", part, flags=re.MULTILINE)
    return {name: cell for name, cell in actual if name != "input"}


def test_the_page_states_every_limit() -> None:
    assert {name: numbers(cell) for name, cell in rows().items()} == LIMITS
    assert f"after {writing.MOST_TEXT:,} bytes of tokens" in PAGE


@pytest.mark.parametrize("module", [files, headers, manifest, tokenizer, texts, visible, html])
def test_every_limit_is_on_the_page(module: Any) -> None:
    stated = {number for each in LIMITS.values() for number in each}
    own = {name: value for name, value in vars(module).items() if name.startswith("MOST_") and name != "MOST_NAME"}
    assert own
    assert set(own.values()) <= stated


#: By the file of tests the claims of the page, each with the test that shows it.
CLAIMS = {
    "unit/checkpoints/test_hostile_checkpoints.py": {
        "No pickle is read": "test_pickles_are_never_opened",
        "fields that name code": "test_fields_that_no_bert_has_are_ignored",
        "raises an error, and so does a weight that is in two shards": "test_a_weight_in_two_shards_is_refused",
        "Other files of the folder are not opened": "test_other_files_are_ignored",
        "Nothing is built before": "test_a_configuration_that_does_not_fit_builds_nothing",
        "raises an error before the weights are read": "test_weights_that_do_not_fit_are_not_read",
        "Symbolic links are followed": "test_symbolic_links_in_a_folder_are_followed",
    },
    "unit/results/test_io_hostile.py": {
        "Reading never blocks": "test_irregular_files_are_refused_at_once",
        "up to thirty times its length": "test_a_header_takes_thirty_times_its_length_at_most",
        "only claimed in a header take none": "test_a_process_of_little_memory_refuses_them_all",
        "about as much memory as the file is long": "test_reading_takes_the_memory_of_the_arrays",
        "never write a header that is too long to be read": "test_headers_that_could_not_be_read",
        "the tests compare the two readers": "test_changed_files_are_read_as_the_library",
        "if it is truncated meanwhile": "test_a_file_that_is_cut_while_it_is_read",
    },
    "unit/cli/test_hostile.py": {
        "may be pipes": "test_a_named_pipe_is_read_to_its_end",
        "both are plain ASCII": "test_json_is_ascii_and_exact",
        "Text that Rich, HTML or a terminal would interpret": "test_status_lines_show_markup_as_text",
    },
    "unit/streaming/test_folder.py": {
        "begins another shard": "test_streams_split_long_texts",
    },
    "unit/streaming/test_folder_broken.py": {
        "a manifest cannot name a file elsewhere": "test_broken_manifests_are_refused"
    },
    "unit/common/test_files.py": {
        "each result is either valid or raises an error": "test_changed_shards_with_a_manifest_that_vouches",
        "A writer's lock is a file": "test_a_lock_that_is_no_regular_file_is_refused",
        "written completely or not at all": "test_a_write_that_fails_leaves_the_good_file",
        "If the disk is full": "test_a_disk_that_is_full_in_the_middle",
        "the target of the link is not changed": "test_nothing_is_written_through_a_link",
    },
    "unit/common/test_text.py": {
        "is read from a file exactly as it was written": "test_files_preserve_hostile_text",
        "in `repr`": "test_results_and_comparisons_print_hostile_text",
        "in an error message": "test_errors_on_files_print_hostile_text",
        "on a page, in a notebook": "test_a_notebook_shows_hostile_text_as_text",
    },
    "unit/page/test_page.py": {"The page of `embgrad report` escapes": "test_hostile_text_is_shown_as_text"},
    "cross/parity/test_hostile_checkpoint.py": {
        "`trust_remote_code` is off": "test_no_code_of_a_checkpoints_own_is_run",
        "names kernels of a repository": "test_the_command_line_fetches_no_kernels",
    },
}


@pytest.mark.parametrize(
    ("file", "phrase", "test"), [(file, *claim) for file, claims in CLAIMS.items() for claim in claims.items()]
)
def test_each_claim_is_tested(file: str, phrase: str, test: str) -> None:
    assert phrase in PAGE
    assert f"def {test}" in (DOCS.parent / "tests" / file).read_text(encoding="utf-8")
