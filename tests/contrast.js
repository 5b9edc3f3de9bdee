// The words in these elements whose contrast is below 4.5 (WCAG 2.2, 1.4.3): [contrast, words, colour] of each.
(selector) => {
  const parse = (colour) => {
    const numbers = colour.match(/[\d.]+/g).map(Number);
    return numbers.length < 4 ? [...numbers, 1] : numbers; // red, green, blue, alpha
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (colour) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ancestors = (e) => (e ? [...ancestors(e.parentElement), getComputedStyle(e)] : []);
  const found = [];
  for (const output of document.querySelectorAll(selector)) {
    const texts = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const e = texts.currentNode.parentElement, words = texts.currentNode.textContent.trim();
      const hidden = e.closest("svg, style, script, :disabled") || !e.checkVisibility() || !e.getClientRects().length;
      if (!words || hidden || /^[█-▏\s]+$/.test(words)) continue; // the last: bars, drawn with characters
      const styles = ancestors(e);
      const ground = styles.map((s) => parse(s.backgroundColor)).reduce((below, top) => over(top, below), [255, 255, 255, 1]);
      const colour = parse(styles.at(-1).color);
      colour[3] *= styles.reduce((product, s) => product * s.opacity, 1);
      const [dark, bright] = [luminance(over(colour, ground)), luminance(ground)].sort((x, y) => x - y);
      const contrast = (bright + 0.05) / (dark + 0.05);
      if (contrast < 4.5) found.push([contrast.toFixed(2), words.slice(0, 40), styles.at(-1).color]);
    }
  }
  return found;
}
