// What can be seen of the page, and how well: the contrast of each visible text with what is behind it.
(() => {
  const channels = colour => {
    const found = colour.match(/[\d.]+/g).map(Number);
    return [found[0], found[1], found[2], found.length > 3 ? found[3] : 1];
  };
  const over = (front, back) => front.slice(0, 3).map((one, i) => one * front[3] + back[i] * (1 - front[3]));
  const luminance = colour => {
    const [red, green, blue] = colour.map(one => {
      const share = one / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = element => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const colour = channels(getComputedStyle(one).backgroundColor);
      layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((back, front) => over(front, back), [255, 255, 255]);
  };
  const visible = element => {
    for (let one = element; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      if (style.opacity === "0" || style.clipPath !== "none") return false;
    }
    return element.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true});
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !visible(element) || ["TITLE", "DESC"].includes(element.tagName.toUpperCase())) continue;
    const style = getComputedStyle(element), back = behind(element);
    const front = over(channels(element instanceof SVGElement ? style.fill : style.color), back);
    const [bright, dim] = [luminance(front), luminance(back)].sort((a, b) => b - a);
    found.push({text, contrast: (bright + 0.05) / (dim + 0.05), tag: element.tagName, paper: luminance(back)});
  }
  return found;
})()
