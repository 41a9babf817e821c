// What the page does: numbers under the pointer or focus, samples of a cell, sorting,
// filtering, themes, downloads. Text from the data only ever becomes text, never markup.
const root = document.documentElement;
const data = JSON.parse(document.getElementById("data").textContent);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const level = `${+(100 * Object.values(data.evaluations)[0].level).toFixed(3)}%`;

const percent = (share) => `${(100 * share).toFixed(1)}%`;
const small = (p) => (p < 0.001 ? "<0.001" : p.toFixed(3));
const grouped = (count) => count.toLocaleString("en-US");

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

// ---- Heatmaps -------------------------------------------------------------------------

const tip = document.getElementById("tip");

function binOf(cell) {
  const { method, table } = cell.closest(".heatmap").dataset;
  return { method, name: table, bin: +cell.dataset.bin, table: data.evaluations[method].tables[table] };
}

function facts(found, few) {
  const { table, bin } = found;
  const ends = `${(100 * table.lower[bin]).toFixed(1)}–${(100 * table.upper[bin]).toFixed(1)}`;
  return [
    ["Coverage", few ? `${table.covered[bin]} of ${table.count[bin]}, too few` : percent(table.coverage[bin])],
    [`${level} interval`, ends],
    ["Samples", grouped(table.count[bin])],
    ["Mean set size", table.mean_size[bin].toFixed(2)],
    ["p, under-coverage", small(table.p_value[bin])],
    ["p after Holm", small(table.holm[bin])],
  ];
}

function nameCell(cell) {
  if (!cell.dataset.bin) {
    cell.setAttribute("aria-label", "no samples");
    return;
  }
  const found = binOf(cell);
  const words = facts(found, cell.classList.contains("few")).map(([name, value]) => `${name} ${value}`).join(", ");
  cell.setAttribute("aria-label", `${found.table.labels[found.bin]}: ${words}`);
}

function showTip(cell) {
  if (!cell.dataset.bin) return hideTip();
  const found = binOf(cell);
  const list = element("dl");
  for (const [name, value] of facts(found, cell.classList.contains("few"))) list.append(element("dt", name), element("dd", value));
  fillTip(cell, found.table.labels[found.bin], list);
}

function fillTip(beside, title, content) {
  tip.replaceChildren(element("b", title), content);
  tip.hidden = false;
  placeTip(beside.getBoundingClientRect());
}

function placeTip(cell) {
  const own = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(cell.left + cell.width / 2 - own.width / 2, root.clientWidth - own.width - 8));
  const above = cell.top - own.height - 8;
  const top = above > 4 ? above : cell.bottom + 8;
  tip.style.left = `${left + window.scrollX}px`;
  tip.style.top = `${top + window.scrollY}px`;
}

function hideTip() {
  tip.hidden = true;
}

function neighbour(grid, cell, key) {
  const rows = all("tbody tr", grid).map((row) => all("td", row));
  const y = rows.findIndex((row) => row.includes(cell));
  const x = rows[y].indexOf(cell);
  const moves = {
    ArrowLeft: [y, x - 1],
    ArrowRight: [y, x + 1],
    ArrowUp: [y - 1, x],
    ArrowDown: [y + 1, x],
    Home: [y, 0],
    End: [y, rows[y].length - 1],
  };
  const [toY, toX] = moves[key] ?? [];
  return rows[toY]?.[toX];
}

// One cell of a grid can be reached with Tab; arrows move from there.
function moveFocus(grid, cell) {
  for (const other of all('td[tabindex="0"]', grid)) other.tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
}

function onGridKey(grid, event) {
  const cell = event.target.closest("tbody td");
  if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    listSamples(cell, true);
  } else if (event.key === "Escape") {
    hideTip();
  } else {
    const next = neighbour(grid, cell, event.key);
    if (!next) return;
    event.preventDefault();
    moveFocus(grid, next);
  }
}

function prepareGrid(grid) {
  const cells = all("tbody td", grid);
  cells.forEach(nameCell);
  (cells.find((cell) => cell.dataset.bin) ?? cells[0]).tabIndex = 0;
  const reached = (event) => event.target.closest("tbody td");
  for (const kind of ["mouseover", "focusin"]) {
    grid.addEventListener(kind, (event) => reached(event) && showTip(reached(event)));
  }
  for (const kind of ["mouseleave", "focusout"]) grid.addEventListener(kind, hideTip);
  grid.addEventListener("keydown", (event) => onGridKey(grid, event));
  grid.addEventListener("click", (event) => {
    const cell = reached(event);
    if (!cell) return;
    moveFocus(grid, cell);
    listSamples(cell, false);
  });
}

// ---- Samples of a cell ----------------------------------------------------------------

function setInWords(size, codes) {
  const names = codes.map((code) => data.samples.classes[code]);
  const rest = size - codes.length;
  if (size === 0) return "(empty)";
  return names.join(", ") + (rest > 0 ? ` and ${grouped(rest)} more` : "");
}

function sampleRow(method, sample) {
  const [row, label, confidence, trust] = data.samples.rows[sample];
  const [covered, size, codes] = data.samples.methods[method].sets[sample];
  const line = element("tr");
  line.append(
    element("td", String(row)),
    element("td", data.samples.classes[label], "name"),
    element("td", covered ? "covered" : "missed", covered ? "name" : "name missed"),
    element("td", setInWords(size, codes), "set"),
    element("td", grouped(size)),
    element("td", confidence.toFixed(3)),
  );
  if (trust !== null) line.append(element("td", trust.toPrecision(3)));
  return line;
}

function sampleTable(method, samples) {
  const trusted = data.samples.rows[samples[0]][3] !== null;
  const heads = ["Row", "True class", "Result", "Set", "Size", "Conf", ...(trusted ? ["Trust"] : [])];
  const head = element("tr");
  heads.forEach((text, i) => {
    const cell = element("th", text);
    cell.scope = "col";
    if (i === 0 || i > 3) cell.style.textAlign = "right";
    head.append(cell);
  });
  const table = element("table");
  table.append(element("thead"), element("tbody"));
  table.tHead.append(head);
  for (const sample of samples) table.tBodies[0].append(sampleRow(method, sample));
  return table;
}

function listSamples(cell, byKeyboard) {
  if (!data.samples || !cell.dataset.bin) return;
  const { method, name, bin, table } = binOf(cell);
  const samples = data.samples.methods[method].bins[name][bin];
  const panel = cell.closest(".division").querySelector(".samples");
  all(".chosen", panel.parentElement).forEach((other) => other.classList.remove("chosen"));
  cell.classList.add("chosen");
  const shown = `${samples.length} of ${grouped(table.count[bin])} samples, the worst first`;
  const scroll = element("div", undefined, "scroll");
  scroll.append(sampleTable(method, samples));
  const close = element("button", "Close");
  close.type = "button";
  close.addEventListener("click", () => closeSamples(panel, cell));
  panel.onkeydown = (event) => event.key === "Escape" && closeSamples(panel, cell);
  const head = element("div", undefined, "head");
  head.append(element("h4", `${method}, ${table.labels[bin]}: ${shown}`), close);
  panel.replaceChildren(head, scroll);
  panel.hidden = false;
  if (byKeyboard) panel.focus();
}

function closeSamples(panel, cell) {
  panel.hidden = true;
  cell.classList.remove("chosen");
  cell.focus();
}

// ---- Tables ---------------------------------------------------------------------------

// A number where the cell carries one, its text otherwise; missing numbers go last.
function keyOf(row, index) {
  const cell = row.cells[index];
  if (cell.tagName === "TH") return cell.textContent;
  return cell.dataset.v === undefined ? null : +cell.dataset.v;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortTable(table, head) {
  const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const sign = direction === "ascending" ? 1 : -1;
  all("[aria-sort]", table).forEach((other) => other.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", direction);
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [keyOf(row, head.cellIndex), row]);
  keyed.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : sign * compare(a, b)));
  body.append(...keyed.map(([, row]) => row));
}

function filterTable(table, input, output) {
  const wanted = input.value.trim().toLowerCase();
  const rows = [...table.tBodies[0].rows];
  for (const row of rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
  output.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
}

function prepareTable(table) {
  for (const head of all("th[aria-sort]", table)) {
    head.querySelector("button").addEventListener("click", () => sortTable(table, head));
  }
  const filter = table.closest("section").querySelector(".filter");
  const [input, output] = [filter.querySelector("input"), filter.querySelector("output")];
  input.addEventListener("input", () => filterTable(table, input, output));
}

// ---- Downloads ------------------------------------------------------------------------

// Spreadsheets run text that starts like a formula; an apostrophe keeps it text.
function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return `"${safe.replaceAll('"', '""')}"`;
}

const csv = (rows) => rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";

function binRows() {
  const columns = "count covered coverage lower upper mean_size p_value holm".split(" ");
  const rows = [["method", "table", "bin", ...columns]];
  for (const [method, evaluation] of Object.entries(data.evaluations)) {
    for (const [name, table] of Object.entries(evaluation.tables)) {
      table.labels.forEach((label, i) => rows.push([method, name, label, ...columns.map((c) => table[c][i])]));
    }
  }
  return rows;
}

function metricRows() {
  const rows = [["method", "metric", "value", "lower", "upper", "floor"]];
  for (const [method, metrics] of Object.entries(data.metrics)) {
    for (const [name, { value, lower, upper, floor }] of Object.entries(metrics)) {
      rows.push([method, name, value, lower, upper, floor]);
    }
  }
  return rows;
}

const files = {
  json: () => ["coverage-report.json", "application/json", JSON.stringify({ ...data, samples: undefined }, null, 1)],
  metrics: () => ["coverage-report-metrics.csv", "text/csv", csv(metricRows())],
  bins: () => ["coverage-report-bins.csv", "text/csv", csv(binRows())],
};

function download(kind) {
  const [name, type, text] = files[kind]();
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---- Page -----------------------------------------------------------------------------

function prepareThemes() {
  const [sheet, button] = [document.getElementById("dark"), document.getElementById("theme")];
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const show = (dark) => {
    button.setAttribute("aria-pressed", dark);
    root.dataset.theme = dark ? "dark" : "light";
  };
  let chosen = false;
  show(system.matches);
  system.addEventListener("change", () => chosen || show(system.matches));
  button.addEventListener("click", () => {
    chosen = true;
    const dark = button.getAttribute("aria-pressed") !== "true";
    sheet.media = dark ? "screen" : "not all";
    show(dark);
  });
}

root.classList.toggle("listing", Boolean(data.samples));
all(".heatmap").forEach(prepareGrid);
all(".bins").forEach(prepareTable);
all("[data-download]").forEach((button) => button.addEventListener("click", () => download(button.dataset.download)));
document.getElementById("print").addEventListener("click", () => window.print());
prepareThemes();
