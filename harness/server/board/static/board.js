"use strict";
// Switches the theme, and shows running and waiting submissions live. Every page can be read without scripts.

const THEMES = ["automatic", "light", "dark"];
const button = document.querySelector(".theme");

function remembered() {
  try {
    return localStorage.getItem("podium-theme");
  } catch {
    return null; // a browser may store nothing
  }
}

function setTheme(theme) {
  if (theme === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = `Theme: ${theme === "automatic" ? "auto" : theme}`;
  button.dataset.theme = theme;
}

button.addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(button.dataset.theme) + 1) % THEMES.length];
  setTheme(theme);
  try {
    localStorage.setItem("podium-theme", theme);
  } catch {
    // The theme then lasts as long as the page.
  }
});
button.hidden = false;
setTheme(THEMES.includes(remembered()) ? remembered() : "automatic");

// Only text is written, never HTML: input of strangers stays text.
function announce(text) {
  document.querySelector(".announcement").textContent = text;
}

function words(event) {
  const data = event.data;
  if (event.kind === "queue") return `waits, number ${data.position} of ${data.of} in the queue`;
  if (event.kind === "record") return "is the new best";
  if (event.kind === "state" && data.error) return data.state === "succeeded" ? data.error : `${data.state.replace("_", " ")}: ${data.error}`;
  if (event.kind === "state") return data.state.replace("_", " ");
  if (data.line) return data.line;
  const number = Math.min(Math.floor(data.done) + 1, data.total);
  const sample = data.sample ? `, process ${data.sample[0]} of ${data.sample[1]}` : "";
  return `${data.doing}, case ${number} of ${data.total}: ${data.case}${sample}`;
}

const OVER = ["succeeded", "failed", "timed_out", "hacked"];

// Replace the elements marked data-renewed by those of the page as it is now. The rest and the focus stay unchanged.
async function renewOnce() {
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-renewed]")) {
    const fresh = page.querySelector(`[data-renewed="${part.dataset.renewed}"]`);
    if (!fresh || fresh.innerHTML === part.innerHTML) continue;
    const held = part.contains(document.activeElement) ? document.activeElement : null;
    part.replaceWith(fresh);
    if (!held) continue;
    const same = (each) => ["href", "aria-label"].every((name) => each.getAttribute(name) === held.getAttribute(name));
    [...fresh.querySelectorAll("a, [tabindex]")].find(same)?.focus({ preventScroll: true });
  }
}

let renewing = false;
let again = false;
const told = [];

// An event that arrives while the page is fetched may be newer than the page. It is shown after the page.
async function renew() {
  again = true;
  if (renewing) return;
  renewing = true;
  while (again) {
    again = false;
    try {
      await renewOnce();
    } catch {
      // The server is gone. The stream opens again when the server is back.
    }
  }
  renewing = false;
  told.splice(0).forEach(show);
}

// The page of one submission: its state, its progress, and at the end its run.
function showOne(place, event) {
  place.querySelector("[data-state]").textContent = words(event);
  const bar = place.querySelector("progress");
  if (event.kind === "step" && event.data.total) {
    bar.hidden = false;
    bar.max = event.data.total;
    bar.value = event.data.done;
  }
  if (event.kind === "state") announce(words(event));
  if (event.kind === "state" && OVER.includes(event.data.state)) renew();
}

// The front page: a line for each submission that waits or runs.
function showAll(place, event) {
  const list = place.querySelector("[data-jobs]");
  let line = list.querySelector(`[data-submission="${Number(event.submission)}"]`);
  if (!line) {
    line = document.createElement("li");
    line.dataset.submission = event.submission;
    // Only its author can open a trial's page.
    const link = document.createElement(event.public ? "a" : "span");
    if (event.public) link.href = `/submission/${Number(event.submission)}`;
    link.textContent = `#${event.submission}`;
    const live = document.createElement("span");
    live.className = "quiet live";
    line.append(link, ` ${event.user} · ${event.competition} `, live);
    list.append(line);
    place.querySelector("[data-idle]")?.remove();
  }
  line.querySelector(".live").textContent = words(event);
  if (event.kind === "record") announce(`submission ${event.submission} is a new best: load the page again to see it`);
}

const live = () => document.querySelector("[data-live]");
const source = live() && new EventSource(live().dataset.live);

function show(event) {
  const place = live();
  if (!place) source.close(); // the verdict is shown
  else if (place.querySelector("[data-jobs]")) showAll(place, event);
  else showOne(place, event);
}

if (source) {
  // Events between loading the page and opening the stream, or during an interruption, are lost: fetch the page again.
  source.addEventListener("open", renew);
  source.addEventListener("message", (message) => {
    const event = JSON.parse(message.data);
    if (!renewing) return show(event);
    told.push(event);
    if (event.kind === "state") again = true;
  });
}
