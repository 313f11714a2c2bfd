"use strict";
// Sorts and filters tables, switches the theme, and opens the target of a link. The page can be read without scripts.

function announce(text) {
  document.querySelector(".announcement").textContent = text;
}

// A cell's value: data-v (a number) if it has one, else its text. Empty cells always come last.
function valueOf(row, column) {
  const cell = row.cells[column];
  const value = cell.dataset.v;
  if (value === undefined) return cell.textContent.trim().toLowerCase() || null;
  return value === "" || Number.isNaN(Number(value)) ? null : Number(value);
}

function compare(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (one === other) return 0; // also for two infinities, whose difference is NaN
  const order = typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
  return sign * order;
}

function sortBy(table, header) {
  const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const column = header.cellIndex;
  const sign = direction === "ascending" ? 1 : -1;
  const rows = Array.from(table.tBodies[0].rows, (row) => ({ row, value: valueOf(row, column) }));
  rows.sort((one, other) => compare(one.value, other.value, sign));
  table.tBodies[0].append(...rows.map(({ row }) => row));
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction);
  announce(`sorted by ${header.textContent.trim()}, ${direction}`);
}

function makeSortable(table) {
  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    if (header.dataset.sorted) header.setAttribute("aria-sort", header.dataset.sorted);
    button.addEventListener("click", () => sortBy(table, header));
  }
}

const FILTERED_FROM = 8; // rows: fewer can be seen at a glance

function makeFilterable(table) {
  const rows = Array.from(table.tBodies[0].rows);
  if (rows.length < FILTERED_FROM) return;
  const label = document.createElement("label");
  const field = document.createElement("input");
  field.type = "search";
  label.className = "filter";
  label.append("Filter rows ", field);
  table.parentElement.before(label);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) shown += 1;
    }
    announce(`${shown} of ${rows.length} rows`);
  });
}

// The filter field: of all elements with a submission's name, show only those that contain each word.
function filterSubmissions() {
  const words = this.value.toLowerCase().split(/\s+/).filter(Boolean);
  const names = new Set();
  for (const part of document.querySelectorAll("[data-name]")) {
    const name = part.dataset.name.toLowerCase();
    const other = !words.every((word) => name.includes(word));
    part.classList.toggle("other", other);
    if (!other) names.add(name);
  }
  announce(`${names.size} submissions`);
}

const THEMES = ["automatic", "light", "dark"];

function remembered() {
  try {
    return localStorage.getItem("podium-theme");
  } catch {
    return null; // a browser may store nothing for local files
  }
}

function setTheme(theme) {
  const button = document.querySelector(".theme");
  if (theme === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = `Theme: ${theme}`;
  button.dataset.theme = theme;
}

function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(this.dataset.theme) + 1) % THEMES.length];
  setTheme(theme);
  try {
    localStorage.setItem("podium-theme", theme);
  } catch {
    // The theme then lasts as long as the page.
  }
}

// A link into a folded part opens that part.
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target) return;
  for (let part = target; part; part = part.parentElement) {
    if (part instanceof HTMLDetailsElement) part.open = true;
  }
  target.classList.remove("other");
  target.scrollIntoView();
}

document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll("table.filterable").forEach(makeFilterable);
for (const part of document.querySelectorAll(".top [hidden]")) part.hidden = false;
document.querySelector(".theme").addEventListener("click", nextTheme);
document.querySelector(".filter.all input").addEventListener("input", filterSubmissions);
setTheme(THEMES.includes(remembered()) ? remembered() : "automatic");
addEventListener("hashchange", openTarget);
// A second click on the same link does not change the hash, but its target may have been closed since.
addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  const contents = document.querySelector(".contents");
  if (link || !contents.contains(event.target)) contents.open = false;
  if (link && link.hash === location.hash) openTarget();
});
openTarget();
