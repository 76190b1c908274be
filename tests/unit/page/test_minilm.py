"""The page of real models: one checkpoint in three frameworks; EMBGRAD_SCREENSHOT=docs/page.png writes its picture."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

import embgrad
from embgrad.cli.demo import TEXTS, example_batch
from embgrad.loading.minilm import minilm_folder
from tests.unit.page.browser import Browser, Page

FRAMEWORKS = ("torch", "tensorflow", "gluon")
POINTS = ("word", "embeddings", *(f"layer.{number}" for number in range(6)))

#: The picture's size: as much as shows every part.
WIDTH, HEIGHT, MOST_BYTES = 1200, 1322, 400_000

#: How many pixels have each colour, most first.
COLOURS = """(async () => {
  const image = new Image();
  image.src = 'data:image/png;base64,%s';
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer), counts = {};
  for (const pixel of pixels) counts[pixel] = (counts[pixel] || 0) + 1;
  return [image.width, image.height, Object.values(counts).sort((a, b) => b - a)];
})()"""


def test_three_frameworks_on_one_page(browser: Browser, opened: Callable[..., Page]) -> None:
    batch, objective = example_batch(minilm_folder()), embgrad.Sum(output="pooled")
    results = {
        name: embgrad.gradients(embgrad.zoo.load_bert(minilm_folder(), name), batch, objective, at=list(POINTS))
        for name in FRAMEWORKS
    }
    page = opened(results, title="One BERT in three frameworks")
    text = page.evaluate("document.body.innerText")
    for name in FRAMEWORKS[1:]:
        assert f"✓ {name} agrees with torch at all {len(POINTS)} points" in text
    assert page.evaluate("document.querySelectorAll('article').length") == len(TEXTS)
    assert page.evaluate("document.querySelectorAll('fieldset').length") == len(TEXTS) * 2 * 3
    reported = page.evaluate("[...document.querySelectorAll('fieldset .t')].map(one => one.textContent)")
    gripping = f"id 13940 · magnitude {results['torch']['word'].saliency('norm')[0, 2]:.4g}"
    assert any("gripping" in item and gripping in item for item in reported)
    assert page.complaints() == []

    picture = page.picture(WIDTH, HEIGHT)
    blank = browser.open("about:blank")
    width, height, counts = blank.evaluate(COLOURS % base64.b64encode(picture).decode())
    blank.close()
    assert (width, height) == (WIDTH, HEIGHT)
    assert len(counts) > 200, "many colours"
    assert counts[0] < 0.95 * sum(counts), "not paper alone"
    assert len(picture) < MOST_BYTES
    target = os.environ.get("EMBGRAD_SCREENSHOT")
    if target:
        Path(target).write_bytes(picture)
