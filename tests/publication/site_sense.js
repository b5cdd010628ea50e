// What a page must hold in print, at the width of a sheet's text: nothing wider than the sheet, nothing cut off, dark words on white.
() => {
  const faults = [];
  const width = document.documentElement.clientWidth;
  for (const one of document.querySelectorAll("body *")) {
    const box = one.getBoundingClientRect();
    if (!box.width || !box.height || one.closest("svg") || !one.checkVisibility()) continue;
    const style = getComputedStyle(one);
    const name = `${one.tagName.toLowerCase()}${one.className ? `.${one.className}` : ""}: ${one.textContent.trim().slice(0, 50)}`;
    if (box.right > width + 1) faults.push(`ends ${Math.round(box.right - width)} px beyond the sheet: ${name}`);
    if (style.overflowX !== "visible" && one.scrollWidth > one.clientWidth + 1) faults.push(`is cut off: ${name}`);
  }
  const light = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return a === 0 ? 1 : (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  if (ground < 0.95) faults.push(`the sheet is not white: ${ground}`);
  if (light(getComputedStyle(document.body).color) > 0.3) faults.push("words are pale");
  for (const card of document.querySelectorAll(".chart, .scroll, pre, .badge, .not-covered")) {
    if (light(getComputedStyle(card).backgroundColor) < 0.8) faults.push(`is dark: ${card.className}`);
  }
  return faults;
}
