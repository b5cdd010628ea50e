// What a page must hold by its computed styles: nothing wider than the window, no table cut off, squeezed or empty, no line through words,
// contrast of texts (WCAG 1.4.3) and of marks (1.4.11).
() => {
  const faults = [];
  const wide = document.scrollingElement.scrollWidth - window.innerWidth;
  if (wide > 0) {
    const who = [...document.querySelectorAll("main *, header *")].find(
      (one) => one.getBoundingClientRect().right > window.innerWidth + 1 && !one.closest(".scroll, pre, svg"),
    );
    faults.push(`wider than the window by ${wide} px: ${who ? who.outerHTML.slice(0, 120) : "?"}`);
  }
  for (const badge of document.querySelectorAll(".badge")) {
    const card = badge.closest("tr, li, p, td, .answer");
    const beyond = card ? badge.getBoundingClientRect().right - card.getBoundingClientRect().right : 0;
    if (beyond > 0.5) faults.push(`a badge ends ${beyond.toFixed(1)} px beyond its card: ${badge.textContent}`);
  }
  for (const table of document.querySelectorAll(".scroll > table")) {
    const called = table.caption.textContent.trim().slice(0, 60);
    const holder = table.parentElement;
    if (!table.querySelector("tbody tr")) faults.push(`a table without a line: ${called}`);
    if (window.innerWidth < 1120 || getComputedStyle(table).display !== "table") continue;
    const hidden = holder.scrollWidth - holder.clientWidth;
    if (hidden > 1) faults.push(`a table of which ${hidden} px are out of sight: ${called}`);
    const narrow = [...table.querySelectorAll("tbody td")].find((cell) => {
      const lines = cell.clientHeight / parseFloat(getComputedStyle(cell).lineHeight);
      const words = cell.lastElementChild.getBoundingClientRect().height / parseFloat(getComputedStyle(cell).lineHeight);
      return words > 9 && lines > 9 && cell.clientWidth < 160;
    });
    if (narrow) faults.push(`a cell squeezed to ${narrow.clientWidth} px: ${called}: ${narrow.textContent.trim().slice(0, 80)}`);
  }
  for (const plot of document.querySelectorAll("svg.plot")) {
    const lines = [...plot.querySelectorAll(".zero")].map((one) => one.getBoundingClientRect());
    for (const text of plot.querySelectorAll("text")) {
      const [box, style] = [text.getBoundingClientRect(), getComputedStyle(text)];
      const crossed = lines.some((one) => one.left > box.left && one.left < box.right && one.top < box.bottom && one.bottom > box.top);
      const shielded = style.paintOrder.startsWith("stroke") && style.stroke !== "none";
      if (crossed && !shielded) faults.push(`a line through the words ${text.textContent}`);
    }
  }
  const parsed = (text) => {
    const parts = text.match(/[\d.]+/g);
    return parts ? { rgb: parts.slice(0, 3).map(Number), alpha: parts.length > 3 ? Number(parts[3]) : 1 } : { rgb: [0, 0, 0], alpha: 0 };
  };
  const over = (top, below) => top.rgb.map((value, at) => value * top.alpha + below[at] * (1 - top.alpha));
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const layer = parsed(getComputedStyle(one).backgroundColor);
      if (layer.alpha > 0) layers.push(layer);
      if (layer.alpha === 1) break;
    }
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    return layers.reverse().reduce((below, layer) => over(layer, below), dark ? [18, 18, 18] : [255, 255, 255]);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const opacity = (element) => {
    let found = 1;
    for (let one = element; one; one = one.parentElement) found *= Number(getComputedStyle(one).opacity);
    return found;
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest("style")) continue;
    const style = getComputedStyle(element);
    const svg = element.closest("svg");
    const key = [svg ? style.fill : style.color, style.fontSize, style.fontWeight, element.className, element.parentElement.className].join();
    if (seen.has(key)) continue;
    seen.add(key);
    const colour = parsed(svg ? style.fill : style.color);
    const ground = behind(svg ? svg.parentElement : element);
    const ratio = contrast(over({ rgb: colour.rgb, alpha: colour.alpha * opacity(element) }, ground), ground);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) faults.push(`contrast ${ratio.toFixed(2)} of ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  for (const mark of document.querySelectorAll("svg .dot:not(.faint), svg .interval, svg .curve, svg .o, svg .axis, .key i")) {
    const style = getComputedStyle(mark);
    const name = mark.getAttribute("class");
    if (seen.has(`mark ${name}`) || ["band", "floor", "ring"].includes(name)) continue;
    seen.add(`mark ${name}`);
    const html = mark instanceof HTMLElement;
    const shape = ["circle", "rect"].includes(mark.tagName);
    const colour = parsed(html ? style.backgroundColor : shape ? style.fill : style.stroke);
    const ground = behind(html ? mark.parentElement : mark.closest("svg").parentElement);
    const ratio = contrast(over(colour, ground), ground);
    if (ratio < 3) faults.push(`contrast ${ratio.toFixed(2)} of a mark: ${name}`);
  }
  return faults;
}
