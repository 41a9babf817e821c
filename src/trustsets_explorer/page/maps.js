// Heatmaps, tables of numbers, gaps, sizes and lists: those of the report, drawn anew for each answer.
import { all, grouped, make, one, percent, small, show, swatch } from "./dom.js";

const tip = one("#tip");

function facts(table, bin) {
  const ends = `${(100 * table.lower[bin]).toFixed(1)}–${(100 * table.upper[bin]).toFixed(1)}`;
  return [
    ["Coverage", percent(table.coverage[bin])],
    ["95% interval", ends],
    ["Samples", grouped(table.count[bin])],
    ["Mean set size", table.mean_size[bin].toFixed(2)],
    ["p, under-coverage", small(table.p_value[bin])],
    ["p after Holm", small(table.holm[bin])],
  ];
}

function showTip(cell, table) {
  if (cell.dataset.bin === undefined) return hideTip();
  const list = make("dl", {}, facts(table, +cell.dataset.bin).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  tip.replaceChildren(make("b", {}, table.labels[+cell.dataset.bin]), list);
  tip.hidden = false;
  const [box, bounds] = [cell.getBoundingClientRect(), tip.getBoundingClientRect()];
  const left = Math.max(8, Math.min(box.left + box.width / 2 - bounds.width / 2, document.documentElement.clientWidth - bounds.width - 8));
  const above = box.top - bounds.height - 8;
  tip.style.left = `${left + window.scrollX}px`;
  tip.style.top = `${(above > 4 ? above : box.bottom + 8) + window.scrollY}px`;
}

export function hideTip() {
  tip.hidden = true;
}

function neighbour(grid, cell, key) {
  const rows = all("tbody tr", grid).map((row) => all("td", row));
  const y = rows.findIndex((row) => row.includes(cell));
  const x = rows[y].indexOf(cell);
  const moves = { ArrowLeft: [y, x - 1], ArrowRight: [y, x + 1], ArrowUp: [y - 1, x], ArrowDown: [y + 1, x], Home: [y, 0], End: [y, rows[y].length - 1] };
  const [toY, toX] = moves[key] ?? [];
  return rows[toY]?.[toX];
}

function onKey(grid, event, open) {
  const cell = event.target.closest("tbody td");
  if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    if (cell.dataset.bin !== undefined) open(cell);
  } else if (event.key === "Escape") {
    hideTip();
  } else {
    const next = neighbour(grid, cell, event.key);
    if (!next) return;
    event.preventDefault();
    // One cell of a grid can be reached with Tab; arrows move from there.
    all('td[tabindex="0"]', grid).forEach((other) => (other.tabIndex = -1));
    next.tabIndex = 0;
    next.focus();
  }
}

function paint(cell, style) {
  for (const part of style.split(";").filter(Boolean)) {
    const [name, value] = part.split(":");
    cell.style.setProperty(name, value);
  }
}

function heatmap(map, name, index, table, open) {
  const key = (y, x) => `${index}/${name}/${y}/${x}`;
  const remembered = one(`.heatmap[data-index="${index}"][data-table="${CSS.escape(name)}"] td[tabindex="0"]`)?.dataset.key;
  const rows = map.rows.map(([label, cells], y) => make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader" }, label), ...cells.map((cell, x) => {
    const empty = cell.bin === null;
    const spoken = empty ? "no samples" : `${table.labels[cell.bin]}: ${facts(table, cell.bin).map((pair) => pair.join(" ")).join(", ")}`;
    const made = make("td", { role: "gridcell", tabindex: -1, class: empty ? "empty" : cell.mark, "data-bin": empty ? undefined : cell.bin, "data-key": key(y, x), "aria-label": spoken }, cell.text);
    if (!empty) paint(made, cell.style);
    return made;
  })));
  const columns = map.columns.map((text) => make("th", { scope: "col", role: "columnheader" }, text.replace("–", "–\u200b")));
  const grid = make("table", { class: "heatmap", role: "grid", "aria-readonly": "true", "aria-label": `${name}, ${map.method}: coverage in percent`, "data-table": name, "data-index": index },
    make("tbody", {}, rows), make("tfoot", {}, make("tr", { role: "row" }, make("td", { role: "presentation" }), columns)));
  const cells = all("tbody td", grid);
  const first = cells.find((cell) => cell.dataset.key === remembered) ?? cells.find((cell) => cell.dataset.bin !== undefined) ?? cells[0];
  first.tabIndex = 0;
  const reached = (event) => event.target.closest("tbody td");
  for (const kind of ["mouseover", "focusin"]) grid.addEventListener(kind, (event) => reached(event) && showTip(reached(event), table));
  for (const kind of ["mouseleave", "focusout"]) grid.addEventListener(kind, hideTip);
  grid.addEventListener("keydown", (event) => onKey(grid, event, (cell) => open(index, name, +cell.dataset.bin)));
  grid.addEventListener("click", (event) => reached(event)?.dataset.bin !== undefined && open(index, name, +reached(event).dataset.bin));
  return grid;
}

export function drawMaps(answer, open) {
  one("#maps [data-end]").textContent = `${answer.deepest} or less`;
  one("#maps [data-target]").textContent = answer.target;
  show(one("#divisions"), answer.divisions.map((division) => make("div", { class: "division" },
    make("h3", {}, division.title),
    make("div", { class: "maps" }, division.heatmaps.map((map) => {
      const index = answer.methods.indexOf(map.method);
      return make("figure", {},
        answer.methods.length > 1 ? make("figcaption", {}, swatch(index), map.method) : null,
        heatmap(map, division.name, index, answer.tables[map.method][division.name], open),
        make("p", { class: "axes" }, `Horizontal: ${map.axes[0]}. Vertical: ${map.axes[1]}.`));
    })))));
}

export function drawNumbers(answer) {
  const head = make("tr", {}, make("td"), answer.methods.map((name, i) => make("th", { scope: "col" }, swatch(i), name)));
  const bodies = answer.glance.map((group) => make("tbody", {},
    make("tr", { class: "group" }, make("th", { scope: "rowgroup", colspan: answer.methods.length + 1 }, group.title)),
    group.rows.map(([label, cells]) => make("tr", {}, make("th", { scope: "row" }, label), cells.map(([text, note], i) => make("td", {}, make("span", {}, swatch(i), `${text} `), make("small", {}, note)))))));
  show(one("#glance"), make("table", { class: "glance" }, make("thead", {}, head), bodies));
}

export function drawGaps(answer) {
  const bodies = answer.gaps.rows.map(([title, marks]) => make("tbody", {},
    make("tr", { class: "group" }, make("th", { scope: "rowgroup", colspan: 3 }, title)),
    marks.map((mark) => {
      const parts = { floor: { width: mark.floor }, line: { left: mark.low, width: mark.width }, dot: { left: mark.value } };
      const track = make("div", { class: `track m${mark.slot % 7}`, role: "img", "aria-label": mark.note, title: mark.note });
      for (const [name, ends] of Object.entries(parts)) {
        const bar = make("i", { class: name });
        for (const [side, value] of Object.entries(ends)) bar.style[side] = `${value}%`;
        track.append(bar);
      }
      return make("tr", {}, make("th", { scope: "row" }, swatch(mark.slot), mark.method), make("td", {}, track), make("td", {}, mark.text));
    })));
  const ticks = answer.gaps.axis.map(([at, text]) => {
    const tick = make("span", {}, text);
    tick.style.left = `${at}%`;
    return tick;
  });
  const axis = make("tfoot", { "aria-hidden": "true" }, make("tr", {}, make("td"), make("td", {}, make("div", { class: "axis" }, ticks)), make("td")));
  show(one("#gap-chart"), make("table", { class: "gaps" }, bodies, axis));
}

export function drawSizes(answer) {
  const head = make("tr", {}, make("th", { scope: "col" }, "Classes"), answer.methods.map((name, i) => make("th", { scope: "col" }, swatch(i), name)));
  const rows = answer.sizes.map(([label, bars]) => make("tr", {}, make("th", { scope: "row" }, label), bars.map(([slot, width, text]) => {
    const bar = make("span", { class: `bar m${slot % 7}` });
    if (width) bar.append(make("i"));
    if (width) bar.firstChild.style.width = `${width}%`;
    return make("td", {}, bar, make("span", {}, text));
  })));
  show(one("#size-chart"), make("table", { class: "sizes" }, make("thead", {}, head), make("tbody", {}, rows)));
}

// Bins without a grid: a row for each, the lowest coverage of the first method first.
export function drawLists(answer, open) {
  show(one("#bin-lists"), answer.lists.map((list) => {
    const parts = list.shared_count ? 3 : 4;
    const numbers = ["Count", "Coverage", "Size", "p (Holm)"].slice(list.shared_count ? 1 : 0);
    const top = make("tr", {}, make("td"), list.shared_count ? make("td") : null, list.methods.map((name) => make("th", { scope: "colgroup", colspan: parts }, name)));
    const heads = make("tr", {}, make("th", { scope: "col" }, list.title), list.shared_count ? make("th", { scope: "col" }, "Count") : null, list.methods.flatMap(() => numbers.map((name) => make("th", { scope: "col" }, name))));
    const rows = list.rows.map(([label, cells]) => {
      const bin = answer.tables[list.methods[0]][list.name].labels.indexOf(label);
      const key = `list/${list.name}/${label}`;
      const button = make("button", { type: "button", class: "plain", "data-key": key, onclick: () => open(0, list.name, bin) }, label);
      return make("tr", {}, make("th", { scope: "row" }, bin < 0 ? label : button), cells.map((cell) => make("td", { class: cell.mark || undefined }, cell.text, cell.note ? make("small", {}, ` ${cell.note}`) : null)));
    });
    const table = make("table", { class: `bins ${list.shared_count ? "shared" : "own"}` }, make("thead", {}, top, heads), make("tbody", {}, rows));
    return make("details", { open: list.rows.length <= 12 }, make("summary", {}, `${list.title} (${list.rows.length})`), make("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": `Coverage by ${list.title}` }, table));
  }));
}
