// Small tools of all files of the page. Text from the data only ever becomes text, never markup.

export const all = (selector, from = document) => [...from.querySelectorAll(selector)];
export const one = (selector, from = document) => from.querySelector(selector);
export const percent = (share) => `${(100 * share).toFixed(1)}%`;
export const small = (p) => (p < 0.001 ? "<0.001" : p.toFixed(3));
export const grouped = (count) => count.toLocaleString("en-US");

// An element with attributes and children; a child that is no node becomes text.
export function make(tag, attributes = {}, ...children) {
  const made = tag === "svg" || SHAPES.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const SHAPES = new Set(["g", "line", "circle", "polyline", "text", "title"]);

// Replace what an element shows, and give the focus back to what had it.
export function show(parent, ...children) {
  const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  parent.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  if (key) one(`[data-key="${CSS.escape(key)}"]`, parent)?.focus({ preventScroll: true });
}

export const swatch = (slot) => make("span", { class: `swatch m${slot % 7}`, "aria-hidden": "true" });
