// The slider over alpha: heatmaps, averages, set sizes and the sets of listed samples at alphas
// that were computed when the page was written. At the page's own alpha all is as it was.
"use strict";

// Number of the alpha that is shown; it is set when the slider is prepared.
let place = null;

// Whether numbers of a method are those of an alpha other than the page's own.
function isMoved(method) {
  return place !== null && place !== data.alphas.own && Object.hasOwn(data.alphas.methods, method);
}

// ---- Colours: as in `shade` of trustsets.metrics.colours ----------------------------------

// Halves go to the even number, as in Python.
function round(value) {
  const up = Math.round(value);
  return up - value === 0.5 && up % 2 ? up - 1 : up;
}

function mixed(one, other, depth) {
  const parts = (code) => [1, 3, 5].map((i) => parseInt(code.slice(i, i + 2), 16));
  const ends = parts(other);
  return parts(one).map((part, i) => round(part + depth * (ends[i] - part)));
}

function ink(colour) {
  const [red, green, blue] = colour.map((part) =>
    part <= 10 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function paint(cell, coverage, target, lowest) {
  const below = coverage < target;
  const end = below ? lowest : 1;
  const depth = Math.min((coverage - target) / (end - target), 1);
  for (const [name, colours] of Object.entries(data.alphas.palettes)) {
    const colour = mixed(colours[1], colours[below ? 0 : 2], depth);
    const code = colour.map((part) => part.toString(16).padStart(2, "0")).join("");
    cell.style.setProperty(`--${name}`, `#${code}`);
    cell.style.setProperty(`--${name}-ink`, ink(colour));
  }
}

// ---- What a cell and a set are at this alpha -----------------------------------------------

function movedFacts({ method, name, bin, table }, few) {
  const own = data.alphas.methods[method][name];
  const count = table.count[bin];
  return [
    ["Alpha", data.alphas.texts[place]],
    ["Coverage", few ? `${own.covered[place][bin]} of ${count}, too few` : percent(own.covered[place][bin] / count)],
    ["Samples", grouped(count)],
    ["Mean set size", (own.size[place][bin] / count).toFixed(2)],
  ];
}

// Whether the set holds the true class, its size, and the classes to write out.
function setOf(method, sample) {
  if (!isMoved(method)) return data.samples.methods[method].sets[sample];
  const [codes, held, label, rest] = data.p_values[method][sample];
  const inside = codes.filter((_, i) => parseInt(held[i], 36) > place);
  const others = rest.slice(place).reduce((sum, classes) => sum + classes, 0);
  return [label > place, inside.length + others, inside.slice(0, data.alphas.most_classes)];
}

// The largest p-values, and that of the true class: texts of three cells.
function pCells(method, sample) {
  const [codes, held, label, , second, largest] = data.p_values[method][sample];
  const texts = data.alphas.p;
  const trueClass = data.samples.rows[sample][1];
  const named = (code, number) => `${data.samples.classes[code]}\u00a0${texts[number]}`;
  const top = codes.map((code, i) => [code, parseInt(held[i], 36)]).sort((a, b) => b[1] - a[1]).slice(0, 3);
  const words = top.map(([code, number]) => named(code, number)).join(", ");
  const rest = top.some(([code]) => code === trueClass) ? [] : [named(trueClass, label)];
  return [[words, ...rest].filter(Boolean).join(" … "), data.alphas.confidence[second], texts[largest]];
}

// ---- Moving --------------------------------------------------------------------------------

function moveCell(cell) {
  const { method, name, bin, table } = binOf(cell);
  const own = data.alphas.methods[method]?.[name];
  if (!own) return;
  const coverage = own.covered[place][bin] / table.count[bin];
  cell.textContent = cell.classList.contains("few") ? fewText(cell, table, bin) : (100 * coverage).toFixed(0);
  paint(cell, coverage, 1 - data.alphas.values[place], data.alphas.lowest[place]);
}

// Intervals are known at the page's own alpha only.
function fewText(cell, table, bin) {
  if (place !== data.alphas.own) return "few";
  return `${(100 * table.lower[bin]).toFixed(0)}–${(100 * table.upper[bin]).toFixed(0)}`;
}

function moveAverages() {
  const rows = all(".averages tr:not(.group)");
  rows.forEach((row, i) => all("td", row).forEach((cell, j) => {
    cell.firstChild.data = `${data.alphas.averages[place][i][j]} `;
  }));
}

function sizeRow([label, bars]) {
  const row = element("tr");
  const head = element("th", label);
  head.scope = "row";
  row.append(head);
  for (const [slot, width, text] of bars) {
    const cell = element("td");
    const bar = element("span", undefined, `bar m${slot % 7}`);
    if (width) bar.append(element("i"));
    if (width) bar.firstChild.style.width = `${width}%`;
    cell.append(bar, element("span", text));
    row.append(cell);
  }
  return row;
}

function moveLegend() {
  const legend = document.querySelector(".legend");
  if (!legend) return;
  const [target, deepest] = [data.alphas.targets[place], data.alphas.deepest[place]];
  legend.setAttribute("aria-label", `Colours: deepest at ${deepest} and below, white at ${target}, deepest again at 100%.`);
  legend.querySelector("[data-end]").textContent = `${deepest} or less`;
  legend.querySelector("[data-target]").textContent = target;
}

function moveTo(bar, next) {
  place = next;
  const [range, text] = [bar.querySelector("input"), data.alphas.texts[place]];
  range.value = place;
  range.setAttribute("aria-valuetext", `alpha ${text}`);
  bar.querySelector("output").textContent = `${text} (target coverage ${data.alphas.targets[place]})`;
  root.classList.toggle("moved", place !== data.alphas.own);
  all(".heatmap td[data-bin]").forEach((cell) => {
    moveCell(cell);
    nameCell(cell);
  });
  moveAverages();
  moveLegend();
  document.querySelector(".sizes tbody").replaceChildren(...data.alphas.sizes[place].map(sizeRow));
  refreshSamples();
  hideTip();
}

function prepareAlpha() {
  const bar = document.getElementById("alpha");
  if (!bar) return;
  const { own, methods } = data.alphas;
  const still = Object.keys(data.evaluations).map((method) => !Object.hasOwn(methods, method));
  all(".heatmap").forEach((grid) => grid.classList.toggle("still", !Object.hasOwn(methods, grid.dataset.method)));
  all(".averages tr:not(.group)").forEach((row) => all("td", row).forEach((cell, i) => cell.classList.toggle("still", still[i])));
  const range = bar.querySelector("input");
  range.addEventListener("input", () => moveTo(bar, +range.value));
  bar.querySelector("button").addEventListener("click", () => {
    moveTo(bar, own);
    range.focus();
  });
  // Paper shows the alpha that has intervals and a verdict.
  let before = own;
  window.addEventListener("beforeprint", () => {
    before = place;
    moveTo(bar, own);
  });
  window.addEventListener("afterprint", () => moveTo(bar, before));
  bar.hidden = false;
  place = own;
  range.value = own;
}

