// The page: a list of jobs and the one that is chosen, both fed by one stream of status objects.

import { ask } from "./api.js";
import { el, onChange, put } from "./dom.js";
import { jobView } from "./job.js";
import { FINAL, plain, tone } from "./words.js";

const jobs = new Map();
const list = document.getElementById("jobs");
const place = document.getElementById("job");
const link = document.getElementById("link");
let shown = null;

function chosen() {
  const wanted = decodeURIComponent(location.hash.replace(/^#\/?/, ""));
  return jobs.has(wanted) ? wanted : newestFirst()[0]?.job ?? null;
}

function newestFirst() {
  return [...jobs.values()].reverse().sort((a, b) => (b.submitted ?? "").localeCompare(a.submitted ?? ""));
}

const drawList = onChange((rows) => {
  list.replaceChildren(...rows.map((row) => el("a", {
    href: `#/${encodeURIComponent(row.job)}`, class: row.current ? "entry current" : "entry", "aria-current": row.current ? "page" : null,
  }, el("span", { class: "name" }, row.job), el("span", { class: `badge ${tone(row.state)}` }, row.state),
  el("span", { class: "dim reason" }, plain(row.reason)))));
  list.hidden = rows.length < 2;
});

function draw() {
  const id = chosen();
  drawList(newestFirst().map(({ job, state, reason }) => ({ job, state, reason, current: job === id })));
  if (id === null) return;
  if (shown?.id !== id) {
    shown?.view.close();
    shown = { id, view: jobView(id) };
    place.replaceChildren(shown.view.node);
  }
  const status = jobs.get(id);
  shown.view.update(status);
  document.title = `${status.state} ${status.name || status.job} - zrun`;
}

function say(text, kind) {
  put(link, text);
  link.className = `link ${kind}`;
}

const stream = new EventSource("/api/stream");
stream.addEventListener("open", () => say("live", "good"));
stream.addEventListener("job", (event) => {
  const status = JSON.parse(event.data);
  jobs.set(status.job, status);
  draw();
});
stream.addEventListener("error", async () => {
  const over = jobs.size > 0 && [...jobs.values()].every((status) => FINAL.has(status.state));
  say(over ? "the coordinator has ended: this is how it stood" : "not connected, trying again", over ? "calm" : "warn");
  await ask("/api/jobs"); // leads to the login page if the session is over
});
window.addEventListener("hashchange", draw);
document.getElementById("leave").addEventListener("click", async () => {
  await fetch("/logout", { method: "POST" }).catch(() => null);
  location.replace("/login");
});
